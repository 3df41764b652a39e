//! What happens to the network while a run is under way.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use squall_core::Move;
use squall_wire::Side;

use crate::rng::Rng;

/// The client's second address.
const SECOND: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(10, 3, 0, 1)), 50_000);

/// Something that happens once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happening {
    /// The client's NAT forgets it: others see it at another port, or at another address altogether.
    Rebinding {
        /// Whether only the port changes.
        port_only: bool,
    },
    /// The client moves to its other address, which it has from then on. A refusal is no failure: there may be no spare
    /// connection id at that time.
    Migration(Move),
    /// All datagrams are lost for a while: those that one side sends, or everybody's.
    Blackhole {
        /// Whose; `None` for both.
        from: Option<Side>,
        /// For how long.
        lasting: Duration,
    },
    /// From now on another size of UDP payload gets through, in both directions.
    MaxPayload(usize),
}

/// How often each kind happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Happenings {
    /// Rebindings.
    pub rebindings: u64,
    /// Migrations that were not refused.
    pub migrations: u64,
    /// Blackholes.
    pub blackholes: u64,
    /// Changes of the size.
    pub sizes: u64,
}

/// What happens in the run of a seed, by the time since its beginning: each kind in a quarter of the runs, up to three times in
/// the first seconds. Blackholes are short against every timeout.
#[must_use]
pub fn happenings_of(seed: u64) -> Vec<(Duration, Happening)> {
    let mut rng = Rng::new(seed ^ 0x6861_7070_656e);
    let mut all = Vec::new();
    for kind in 0..4 {
        if !rng.chance(0.25) {
            continue;
        }
        for _ in 0..=rng.below(3) {
            let at = rng.duration(Duration::from_secs(5));
            let happening = match kind {
                0 => Happening::Rebinding {
                    port_only: rng.chance(0.5),
                },
                1 => Happening::Migration(match rng.chance(0.5) {
                    true => Move::WhenValidated,
                    false => Move::AtOnce,
                }),
                2 => Happening::Blackhole {
                    from: [None, Some(Side::Client), Some(Side::Server)][rng.below(3) as usize],
                    lasting: Duration::from_millis(20) + rng.duration(Duration::from_millis(1500)),
                },
                _ => Happening::MaxPayload(1200 + rng.below(300) as usize),
            };
            all.push((at, happening));
        }
    }
    all.sort_by_key(|(at, _)| *at);
    all
}

/// An address for the `n`-th rebinding of a client that is seen at `old`.
pub(crate) fn rebound(old: SocketAddr, n: u64, port_only: bool) -> SocketAddr {
    let port = 10_000 + (n % 30_000) as u16;
    match port_only {
        true => SocketAddr::new(old.ip(), port),
        false => SocketAddr::from(([10, 2, (n >> 8) as u8, n as u8], port)),
    }
}

pub(crate) const fn second() -> SocketAddr {
    SECOND
}
