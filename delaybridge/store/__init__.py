"""Messages in Redis: commands for the Lua scripts, calls made of commands, and the connections.

- A command and its reply: `command`, `verbs` (of a bucket), `registry` (of a namespace),
  `replies`, `keys`, `record`.
- A client's calls, without I/O: `calls` joins `scheduling`, `changes`, `views` and `stats`, which
  share a `namespace`; `selection` finds the messages of a bulk verb.
- Running them: `store`, for other rooms; `pipeline` sends again and translates errors,
  `scripts` packs commands, `connection` has the sockets, `login` the password.
- Checks: `quota`, `rights`, `damage`. Data for people: `stored`, `announcements`, `troubles`.
- New ids: `ids`. What operators set for destinations: `rules`.
"""
