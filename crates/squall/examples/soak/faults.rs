//! What goes wrong, and how: a shell script that begins it and one that ends it. Both run in the
//! client's network; `far COMMAND` runs in the server's. `$SERVER` and `$CLIENT` are the processes,
//! `$OLD` and `$NEW` the client's address and its next one, `$ROUTE` the command that makes `$NEW`
//! the way to the server. What a script prints is passed to the client.

use std::ops::Range;

/// The server's address and port.
pub(crate) const SERVER: &str = "10.9.0.1";
pub(crate) const PORT: u16 = 4433;

pub(crate) struct Fault {
    pub(crate) name: &'static str,
    pub(crate) begin: &'static str,
    pub(crate) end: &'static str,
    /// How long it lasts.
    pub(crate) ms: Range<u64>,
    /// Whether the client has a different address afterwards.
    pub(crate) moves: bool,
}

const NO_TABLE: &str = "nft delete table inet soak";
/// Bundles were split before the link, so the rules saw packets.
const NO_TABLES: &str = "nft delete table inet soak; far nft delete table inet soak
    ip link set c0 gso_max_segs 65535; far ip link set s0 gso_max_segs 65535";
const NO_SHAPER: &str = "tc qdisc del dev c0 root; far tc qdisc del dev s0 root";

const fn fault(
    name: &'static str,
    begin: &'static str,
    end: &'static str,
    ms: Range<u64>,
) -> Fault {
    Fault {
        name,
        begin,
        end,
        ms,
        moves: false,
    }
}

const fn moves(fault: Fault) -> Fault {
    Fault {
        moves: true,
        ..fault
    }
}

/// All of them; connections survive 10 seconds of silence, so most outlive all but the long black
/// hole.
pub(crate) const FAULTS: &[Fault] = &[
    fault(
        "black hole",
        "nft 'table inet soak { chain in { type filter hook input priority 0; ip saddr 10.9.0.1 drop; }
            chain out { type filter hook output priority 0; ip daddr 10.9.0.1 drop; }; }'",
        NO_TABLE,
        500..5_000,
    ),
    fault(
        "black hole towards the server",
        "nft 'table inet soak { chain out { type filter hook postrouting priority 0;
            ip daddr 10.9.0.1 drop; }; }'",
        NO_TABLE,
        500..5_000,
    ),
    fault(
        "black hole towards the client",
        "nft 'table inet soak { chain in { type filter hook input priority 0; ip saddr 10.9.0.1 drop; }; }'",
        NO_TABLE,
        500..5_000,
    ),
    fault(
        "black hole beyond the idle timeout",
        "nft 'table inet soak { chain in { type filter hook input priority 0; ip saddr 10.9.0.1 drop; }
            chain out { type filter hook postrouting priority 0; ip daddr 10.9.0.1 drop; }; }'",
        NO_TABLE,
        12_000..15_000,
    ),
    fault(
        "a tenth is lost",
        "ip link set c0 gso_max_segs 1; far ip link set s0 gso_max_segs 1
        rules='table inet soak { chain in { type filter hook input priority 0; numgen random mod 100 < 10 drop; }; }'
        nft \"$rules\"; far nft \"$rules\"",
        NO_TABLES,
        3_000..10_000,
    ),
    fault(
        "packets above 1300 bytes vanish",
        "ip link set c0 gso_max_segs 1; far ip link set s0 gso_max_segs 1
        rules='table inet soak { chain in { type filter hook input priority 0; meta length > 1300 drop; }; }'
        nft \"$rules\"; far nft \"$rules\"",
        NO_TABLES,
        3_000..10_000,
    ),
    // Routers report the server as unreachable: neither end may believe them.
    fault(
        "port unreachable",
        "nft 'table inet soak { chain out { type filter hook output priority 0;
            ip daddr 10.9.0.1 reject with icmp port-unreachable; }; }'",
        NO_TABLE,
        500..4_000,
    ),
    // EPERM for every datagram sent.
    fault(
        "the server's firewall refuses",
        "far nft 'table inet soak { chain out { type filter hook output priority 0; udp sport 4433 drop; }; }'",
        "far nft delete table inet soak",
        500..4_000,
    ),
    fault(
        "a link of 10 Mbit/s",
        "tc qdisc add dev c0 root tbf rate 10mbit burst 32kb latency 50ms
        far tc qdisc add dev s0 root tbf rate 10mbit burst 32kb latency 50ms",
        NO_SHAPER,
        5_000..12_000,
    ),
    // More than a second of queue, so that sockets fill up and the kernel reports it.
    fault(
        "a link of 5 Mbit/s behind a long queue",
        "tc qdisc add dev c0 root tbf rate 5mbit burst 32kb limit 1000000
        far tc qdisc add dev s0 root tbf rate 5mbit burst 32kb limit 1000000",
        NO_SHAPER,
        5_000..12_000,
    ),
    moves(fault(
        "another address",
        "ip addr add $NEW/32 dev c0; $ROUTE; ip addr del $OLD/32 dev c0",
        "",
        100..200,
    )),
    moves(fault(
        "another address, after none",
        "ip addr del $OLD/32 dev c0",
        "ip addr add $NEW/32 dev c0; $ROUTE",
        500..4_000,
    )),
    fault(
        "the link is down",
        "ip link set c0 down",
        "ip link set c0 up; $ROUTE",
        500..4_000,
    ),
    // EINVAL, EACCES and EHOSTUNREACH.
    fault(
        "routes refuse",
        "ip route replace blackhole 10.9.0.1/32; sleep 0.5; ip route del blackhole 10.9.0.1/32
        ip route replace prohibit 10.9.0.1/32; sleep 0.5; ip route del prohibit 10.9.0.1/32
        ip route replace unreachable 10.9.0.1/32",
        "ip route del unreachable 10.9.0.1/32; $ROUTE",
        300..2_000,
    ),
    fault(
        "no descriptor left at the server",
        "prlimit --pid $SERVER --nofile=$(ls /proc/$SERVER/fd | wc -l):",
        "prlimit --pid $SERVER --nofile=1024:",
        2_000..6_000,
    ),
    fault(
        "no descriptor left at the client",
        "prlimit --pid $CLIENT --nofile=$(ls /proc/$CLIENT/fd | wc -l):",
        "prlimit --pid $CLIENT --nofile=1024:",
        2_000..6_000,
    ),
    fault(
        "the server is stopped",
        "kill -STOP $SERVER",
        "kill -CONT $SERVER",
        500..5_000,
    ),
    fault(
        "the client is stopped",
        "kill -STOP $CLIENT",
        "kill -CONT $CLIENT",
        500..5_000,
    ),
    fault("the client binds again", "echo rebind", "", 100..200),
];
