"""The Sentinel site and the Cluster site: healthy at once, with every option, and breakable."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from tests.rigs import certificates
from tests.rigs.waiting import until
from tests.servers.cluster import ClusterSite
from tests.servers.network import Network
from tests.servers.power import PoweredRedis
from tests.servers.redis import tls_binary
from tests.servers.sentinel import SentinelSite

pytestmark = pytest.mark.slow  # it tests servers that other tests rely on


@pytest.mark.skipif(tls_binary() is None, reason="no Redis with TLS here")
def test_both_sites_can_ask_for_tls(tmp_path: Path) -> None:
    tls = certificates.make(tmp_path)
    with ClusterSite(masters=1, tls=tls) as cluster, SentinelSite(tls=tls, replicas=1) as sentinel:
        for site in (cluster, sentinel):
            assert site.url.startswith("rediss+") and str(tls.authority) in site.url
        (master,) = cluster.masters
        master.client.set("kept", 1)
        cluster.fail_over(cluster.replicas_of(master)[0])
        assert cluster.masters[0].client.get("kept") == b"1"
        assert sentinel.fail_over().client.ping()


def test_a_replica_that_was_cut_off_lacks_the_last_writes_when_it_is_promoted() -> None:
    with Network() as network, SentinelSite(replicas=1, network=network) as site:
        (replica,) = site.replicas
        old = site.master
        old.client.set("first", 1)
        site.wait_in_sync()
        network.cut(old.place, [replica.place])
        old.client.set("last", 1)
        assert old.client.wait(1, 50) == 0
        old.kill()
        network.heal()
        assert site.wait_for_other_master(old) is replica
        assert replica.client.keys() == [b"first"]


def test_a_master_cut_off_from_the_others_is_still_reached_by_clients() -> None:
    with Network() as network, ClusterSite(network=network) as site:
        old = site.masters[0]
        network.cut(old.place, [node.place for node in site.nodes if node is not old])
        with redis.Redis(port=old.seen_port) as client:
            assert client.ping() and old.is_master
            until(lambda: site.masters_seen_by(site.nodes[1]).count(old) == 0)
            assert old.is_master  # two masters, until it hears of it
        network.heal()
        until(lambda: not old.is_master)
        site.wait_until_healthy()


@pytest.mark.parametrize("synced", [True, False])
def test_a_loss_of_power_takes_what_was_not_synced(synced: bool) -> None:
    with PoweredRedis(appendfsync="always") as server:
        with redis.Redis.from_url(server.url) as client:
            client.set("kept", 1)
            client.config_set("appendfsync", "always" if synced else "no")
            client.set("last", 1)
        gone = server.lose_power()
        server.start()
        with redis.Redis.from_url(server.url) as client:
            assert client.mget("kept", "last") == [b"1", b"1" if synced else None]
            assert (gone == 0) is synced
