"""Options of URLs: which values are shown. Any other may be a secret, whatever its name says."""

from __future__ import annotations

from urllib.parse import unquote

TIME_IN_SCRIPTS = "time_in_scripts"
"""In the store's URL. `no`: the scripts are told the time, for servers that refuse TIME in them."""


# A Kafka URL may have these; `publish.kafka.configuration` adds those that may hold a secret.
KAFKA = frozenset(
    """
    batch.num.messages batch.size broker.address.family broker.address.ttl client.dns.lookup
    client.id client.rack compression.codec compression.level compression.type
    connections.max.idle.ms linger.ms message.max.bytes metadata.max.age.ms partitioner
    queue.buffering.max.kbytes queue.buffering.max.messages reconnect.backoff.max.ms
    reconnect.backoff.ms retry.backoff.max.ms retry.backoff.ms sasl.kerberos.keytab
    sasl.kerberos.principal sasl.kerberos.service.name sasl.mechanism sasl.mechanisms
    sasl.oauthbearer.client.id sasl.oauthbearer.method sasl.oauthbearer.scope sasl.username
    socket.connection.setup.timeout.ms socket.keepalive.enable socket.nagle.disable
    socket.receive.buffer.bytes socket.send.buffer.bytes socket.timeout.ms ssl.ca.location
    ssl.certificate.location ssl.cipher.suites ssl.crl.location
    ssl.endpoint.identification.algorithm ssl.key.location ssl.keystore.location
    sticky.partitioning.linger.ms topic.metadata.refresh.interval.ms
    """.split()
)
# Not here, since they hold a secret or may: passwords, keys and certificates as text, configuration
# of OAuth, dictionaries. A user's name is shown before a password, so it is here, too.
HARMLESS = KAFKA.union(
    # Redis, and streams in it
    """
    client_name db max_connections maxlen password_file sentinel_password_file sentinel_username
    ssl_ca_certs ssl_ca_path ssl_cert_reqs ssl_certfile ssl_check_hostname ssl_keyfile
    ssl_min_version time_in_scripts username
    """.split()
    # RabbitMQ
    + """
    backpressure_detection blocked_connection_timeout channel_max connection_attempts frame_max
    heartbeat locale proxy_protocol retry_delay socket_timeout stack_timeout
    """.split()
    # databases
    + """
    application_name charset client_encoding connect_timeout mode read_timeout
    ssl_ca ssl_cert ssl_key ssl_verify_cert ssl_verify_identity sslcert sslkey sslmode sslrootcert
    target_session_attrs write_timeout
    """.split()
    # kombu
    + """
    transport.global_keyprefix transport.health_check_interval transport.is_secure
    transport.master_name transport.max_retries transport.polling_interval
    transport.queue_name_prefix transport.queue_order_strategy transport.region
    transport.retry_on_timeout transport.socket_connect_timeout transport.socket_keepalive
    transport.socket_timeout transport.visibility_timeout transport.wait_time_seconds
    virtual_host
    """.split()
)


def taken(url: str, name: str) -> tuple[str, str | None]:
    """Split a URL into the URL without this option, and the option's value; None: it has none."""
    base, mark, query = str.__str__(url).partition("?")
    pieces = [piece.partition("=") for piece in query.split("&") if piece]
    values = [unquote(value) for option, _, value in pieces if option == name]
    if not values:
        return str.__str__(url), None
    kept = "&".join("".join(piece) for piece in pieces if piece[0] != name)
    return f"{base}{mark}{kept}".removesuffix("?"), values[-1]
