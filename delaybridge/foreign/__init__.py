"""What other systems hold for later, read as lines for `carry`: BullMQ and Celery.

Nothing is changed there, unless the operator asks to remove what is stored here. The stored forms
are described where they are read; docs/coming-from.md explains how to use it.
"""
