-- Redis runs Lua 5.1 and gives a script these names.
std = "lua51"
read_globals = { "redis", "KEYS", "ARGV", "struct", "cjson", "cmsgpack" }
max_line_length = 110
