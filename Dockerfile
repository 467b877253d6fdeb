# One image, every command: `docker run delaybridge scan`, `docker run delaybridge stats`, ...
FROM python:3.12-slim@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea AS build
WORKDIR /src
COPY pyproject.toml requirements.lock requirements-release.lock README.md LICENSE CHANGELOG.md ./
# Exactly the packages that were tested, by their hashes: `make lock` renews the file.
RUN pip install --no-cache-dir --prefix=/install --require-hashes -r requirements.lock
RUN pip install --no-cache-dir --require-hashes -r requirements-release.lock
COPY delaybridge delaybridge
COPY lua lua
COPY config config
RUN pip install --no-cache-dir --prefix=/install --no-deps --no-build-isolation .

FROM python:3.12-slim@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea
COPY --from=build /install /usr/local
# By number: Kubernetes then sees that it is not root.
RUN useradd --system --no-create-home --uid 10001 --user-group delaybridge
USER 10001:10001
# SIGTERM drains: work under way is finished, and the other workers get the buckets.
STOPSIGNAL SIGTERM
# Whether the fleet's messages go out on time: exit code 0 or 1.
HEALTHCHECK --interval=30s --timeout=10s CMD ["delaybridge", "health", "--max-overdue", "60s", "--max-retrying-age", "1h"]
ENTRYPOINT ["delaybridge"]
CMD ["scan"]
