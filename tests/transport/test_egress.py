from __future__ import annotations

import pytest

from gradeline.errors import ConfigError
from gradeline.transport import PublicOnly, allow_all


@pytest.mark.parametrize(
    "address",
    """127.0.0.1 127.9.9.9 0.0.0.0 0.1.2.3 10.0.0.1 172.16.0.1 172.31.255.255 192.168.1.1 169.254.169.254 169.254.1.1
    100.64.0.1 100.127.255.255 100.100.100.200 192.0.0.1 192.0.0.9 192.0.2.1 192.88.99.1 198.18.0.1 198.51.100.1
    203.0.113.1 224.0.0.1 239.1.1.1 240.0.0.1 255.255.255.255 168.63.129.16
    :: ::1 ::8.8.8.8 ::ffff:127.0.0.1 ::ffff:8.8.8.8 64:ff9b::7f00:1 64:ff9b::808:808 64:ff9b:1::1 2002:7f00:1::
    2002:808:808:: 2001:0:1::1 fc00::1 fd00:ec2::254 fe80::1 fe80::1%eth0 fec0::1 ff02::1 2001:db8::1 100::1 5f00::1
    4000::1""".split(),
)
def test_non_public_addresses_are_refused(address: str) -> None:
    reason = PublicOnly().check(address, address, 443)
    assert reason is not None
    assert reason.startswith(f"{address} is a")


@pytest.mark.parametrize("address", ["8.8.8.8", "93.184.216.34", "172.32.0.1", "100.128.0.1", "2606:4700::1111"])
def test_public_addresses_are_allowed(address: str) -> None:
    assert PublicOnly().check("agent.test", address, 443) is None


def test_the_operator_allows_networks_and_pairs() -> None:
    policy = PublicOnly(
        allow=["10.1.0.0/16", "192.168.1.5", "agents.corp:443", "127.0.0.1:8080", "[::1]:8080", "fd00::/8"]
    )
    assert policy.check("x", "10.1.2.3", 80) is None
    assert policy.check("x", "192.168.1.5", 80) is None
    assert policy.check("Agents.Corp.", "10.9.9.9", 443) is None
    assert policy.check("127.0.0.1", "127.0.0.1", 8080) is None
    assert policy.check("::1", "::1", 8080) is None
    assert policy.check("x", "fd12::1", 1) is None
    for host, address, port in (
        ("x", "10.2.0.1", 80),
        ("agents.corp", "10.9.9.9", 80),
        ("evil.test", "10.9.9.9", 443),
        ("127.0.0.1", "127.0.0.1", 8081),
        ("x", "::ffff:10.1.2.3", 80),
    ):
        assert policy.check(host, address, port) is not None


@pytest.mark.parametrize("entry", ["agents.corp", "agents.corp:", ":80", "host:0", "host:70000", "10.0.0.0/99", ""])
def test_an_invalid_entry_is_refused(entry: str) -> None:
    with pytest.raises(ConfigError, match="neither a network"):
        PublicOnly(allow=[entry])


def test_an_invalid_address_is_refused() -> None:
    assert PublicOnly().check("x", "not-an-address", 80) == "'not-an-address' is not an IP address"
    assert allow_all.check("localhost", "127.0.0.1", 80) is None
