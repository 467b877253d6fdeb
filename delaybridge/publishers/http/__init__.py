"""HTTP: each message is a POST to a configured host, signed; the answer's status is the outcome."""

from delaybridge.publishers.http.publisher import HttpPublisher as publisher

__all__ = ["publisher"]
