"""A consumer of a pull topic that has only HTTP. Appends each message to a file, as JSON.

HOLD: 0, or how many messages it receives at most, none of which it finishes.

python consume_http.py URL TOPIC TTR HOLD FILE
"""

import base64
import hashlib
import json
import signal
import sys
import time
import urllib.request


def main(url: str, topic: str, ttr: str, hold: int, path: str) -> None:
    def call(verb, asked):
        request = urllib.request.Request(
            f"{url}/v1/topics/{topic}:{verb}",
            json.dumps(asked).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["items"]

    held = 0
    print("ready", flush=True)
    with open(path, "a", buffering=1) as history:
        while not hold or held < hold:
            most = min(40, hold - held) if hold else 40
            items = call("receive", {"max": most, "wait": "5s", "ttr": ttr})
            held += len(items)
            for item in items:
                body = item["body"]
                body = base64.b64decode(item["body_base64"]) if body is None else body.encode()
                line = {
                    "id": item["id"],
                    "due_ms": item["due_ms"],
                    "attempt": item["attempt"],
                    "at_us": time.time_ns() // 1000,
                    "sha": hashlib.sha1(body).hexdigest(),
                }
                history.write(json.dumps(line) + "\n")
            if items and not hold:
                given = [{"id": item["id"], "receipt": item["receipt"]} for item in items]
                results = call("finish", {"items": given})
                assert {each["result"] for each in results} == {"finished"}, results
    signal.pause()  # until it is killed


if __name__ == "__main__":
    url, topic, ttr, hold, path = sys.argv[1:]
    main(url, topic, ttr, int(hold), path)
