"""Messages in Redis: the Lua scripts' callers, the calls made of them, and the connections.

One command: `verbs` (of a bucket), `registry` (of a namespace), `replies` (their answers), `keys`,
`record`. A call of several commands, without I/O: `calls` puts together `scheduling`, `changes`,
`views` and `stats`, which share a `namespace`. Bulk verbs: `selection`. Running them: `store` is
what others use; `pipeline` sends again and translates errors, `scripts` packs, `connection` has the
sockets, `login` the password. Checks: `quota`, `rights`, `damage`. What people see: `stored`
(a message), `announcements` and `troubles` (the fleet). New ids: `ids`.
"""
