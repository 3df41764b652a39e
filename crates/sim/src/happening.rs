//! What happens to a network while connections use it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use squall_core::{Connection, Move, Time};
use squall_wire::{Direction, Path, Side};

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
    /// The client's first address is gone, and the system sends from the second.
    OtherAddress,
    /// The client has a new socket, with another port.
    NewSocket,
    /// One side's application wants something.
    Wish(Side, Wish),
}

/// What an application may ask of its connection at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// New connection ids.
    RotateIds,
    /// New keys.
    UpdateKeys,
    /// A PING.
    Ping,
    /// This limit on the peer's credit, in bytes.
    ReceiveWindow(u64),
    /// This limit on the send buffers, in bytes.
    SendWindow(u64),
    /// This limit on concurrent streams.
    MaxStreams(Direction, u64),
    /// A packet that shows the server the client's address, as if the machine's addresses had
    /// changed.
    AddressesChanged,
}

impl Wish {
    fn fulfil(self, now: Time, connection: &mut Connection) {
        match self {
            Self::RotateIds => drop(connection.rotate_ids()),
            Self::UpdateKeys => drop(connection.force_key_update(now)),
            Self::Ping => connection.ping(),
            Self::ReceiveWindow(bytes) => connection.set_receive_window(bytes),
            Self::SendWindow(bytes) => connection.set_send_window(bytes),
            Self::MaxStreams(direction, limit) => {
                connection.set_max_concurrent_streams(direction, limit);
            }
            Self::AddressesChanged => connection.on_addresses_changed(),
        }
    }
}

impl Happening {
    pub(crate) fn apply(self, pair: &mut Pair) -> Result<(), Failure> {
        match self {
            Self::Faults(from, faults) => pair.network().set_faults(from, faults),
            Self::Rebinding(address) => pair.network().rebind(Side::Client, address),
            Self::Suspension(side, time) => pair.suspend(side, time),
            Self::Wish(side, wish) if !pair.is_suspended(side) => {
                let now = pair.now();
                if let Some(connection) = pair.connection(side) {
                    wish.fulfil(now, connection);
                }
                pair.pump(side)?;
            }
            Self::Wish(..) => {}
            Self::OtherAddress => {
                let network = pair.network();
                if network.local(Side::Client, SECOND).is_none() {
                    network.add_address(Side::Client, SECOND);
                }
                network.remove_address(Side::Client);
            }
            Self::NewSocket | Self::Migration(_) if pair.is_suspended(Side::Client) => {}
            Self::NewSocket => {
                let network = pair.network();
                let mut new = network.address(Side::Client);
                new.set_port(new.port() + 100);
                network.rebind(Side::Client, new);
                let now = pair.now();
                if let Some(client) = pair.connection(Side::Client) {
                    let path = Path {
                        local: None,
                        ..client.path()
                    };
                    let _ = client.migrate(now, path, Move::AtOnce);
                }
                pair.pump(Side::Client)?;
            }
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
