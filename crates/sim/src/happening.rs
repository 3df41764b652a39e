//! What happens to a network while connections use it.

use std::net::SocketAddr;

use squall_wire::Side;

use crate::network::{Faults, Network};

/// One change.
#[derive(Clone, Debug, PartialEq)]
pub enum Happening {
    /// Datagrams of one side meet these faults from now on.
    Faults(Side, Faults),
    /// Others see the client at this address from now on: its NAT has forgotten it.
    Rebinding(SocketAddr),
}

impl Happening {
    pub(crate) fn apply(self, network: &mut Network) {
        match self {
            Self::Faults(from, faults) => network.set_faults(from, faults),
            Self::Rebinding(address) => network.rebind(Side::Client, address),
        }
    }
}
