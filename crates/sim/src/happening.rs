//! What happens to a network while connections use it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use squall_core::Move;
use squall_wire::{Path, Side};

use crate::failure::Failure;
use crate::network::Faults;
use crate::pair::Pair;

/// The client's second interface.
const SECOND: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 3, 0, 1)), 50_000);

/// One change.
#[derive(Clone, Debug, PartialEq)]
pub enum Happening {
    /// From now on, these faults apply to the datagrams of one side.
    Faults(Side, Faults),
    /// From now on, others see the client at this address: its NAT has lost the binding.
    Rebinding(SocketAddr),
    /// The client moves to its second interface, or back to the first. A refusal is not a failure,
    /// as there may be no spare connection id.
    Migration(Move),
    /// For this long, one side does nothing: its process is suspended.
    Suspension(Side, Duration),
}

impl Happening {
    pub(crate) fn apply(self, pair: &mut Pair) -> Result<(), Failure> {
        match self {
            Self::Faults(from, faults) => pair.network().set_faults(from, faults),
            Self::Rebinding(address) => pair.network().rebind(Side::Client, address),
            Self::Suspension(side, time) => pair.suspend(side, time),
            Self::Migration(_) if pair.is_suspended(Side::Client) => {}
            Self::Migration(how) => {
                let network = pair.network();
                if network.local(Side::Client, SECOND).is_none() {
                    network.add_address(Side::Client, SECOND);
                }
                let home = network.path_from(Side::Client).local;
                let now = pair.now();
                if let Some(client) = pair.connection(Side::Client) {
                    let path = client.path();
                    let second = Some(SECOND.ip());
                    let local = if path.local == second { home } else { second };
                    let _ = client.migrate(now, Path { local, ..path }, how);
                }
                pair.pump(Side::Client)?;
            }
        }
        Ok(())
    }
}
