//! What a connection shares with its endpoint, and reports to it.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use rand::RngCore;
use rand::rngs::StdRng;
use squall_wire::{FixedBit, Side};

use crate::event::EndpointEvent;
use crate::path::PathState;
use crate::path::cid::{IdSource, RemoteIds, TokenChange};
use crate::path::local_ids::LocalIds;
use crate::time::Time;
use crate::token::TokenKey;

/// The endpoint as seen by its connection: the source of ids, tokens and random numbers, and the
/// receiver of events.
#[repr(C)]
pub(crate) struct EndpointLink {
    /// Events that the endpoint has not taken yet.
    pub(crate) events: VecDeque<EndpointEvent>,
    /// Makes connection ids and reset tokens.
    pub(crate) ids: Arc<IdSource>,
    /// Seals the tokens of NEW_TOKEN frames.
    pub(crate) tokens: Arc<TokenKey>,
    /// What this end accepts of the fixed bit, and so whether it greases it.
    pub(crate) fixed_bit: FixedBit,
    /// Servers: the validated address last reported.
    validated_address: Option<IpAddr>,
    /// Random bits that are left, below the highest bit that is set.
    coins: u64,
    /// All randomness of the connection.
    pub(crate) rng: StdRng,
}

impl EndpointLink {
    /// A link with no events; the endpoint already knows `validated_address`.
    pub(crate) fn new(
        ids: Arc<IdSource>,
        tokens: Arc<TokenKey>,
        rng: StdRng,
        fixed_bit: FixedBit,
        validated_address: Option<IpAddr>,
    ) -> Self {
        Self {
            ids,
            tokens,
            coins: 1,
            rng,
            fixed_bit,
            events: VecDeque::new(),
            validated_address,
        }
    }

    /// An unpredictable bit. Only every 63rd needs the generator, whose memory is seldom in the
    /// caches.
    pub(crate) fn toss(&mut self) -> bool {
        if self.coins <= 1 {
            self.coins = self.rng.next_u64() | 1 << 63;
        }
        let heads = self.coins & 1 != 0;
        self.coins >>= 1;
        heads
    }

    /// Reports a client's address once it is validated, and when it changes (on a server).
    pub(crate) fn report_address(&mut self, side: Side, active: &PathState) {
        let address = active.path.remote.ip();
        let known = self.validated_address == Some(address);
        if side == Side::Server && active.validated && !known {
            self.validated_address = Some(address);
            let event = EndpointEvent::AddressValidated(address);
            self.events.push_back(event);
        }
    }

    /// Reports which stateless reset tokens count from now on.
    pub(crate) fn report_reset_tokens(&mut self, remote_ids: &mut RemoteIds) {
        let changes = remote_ids.take_changes().map(|change| match change {
            TokenChange::Added(token) => EndpointEvent::AddResetToken(token),
            TokenChange::Removed(token) => EndpointEvent::RemoveResetToken(token),
        });
        self.events.extend(changes);
    }

    /// Issues as many connection ids as the peer accepts (RFC 9000 §5.1.1).
    pub(crate) fn issue_ids(&mut self, local_ids: &mut LocalIds) {
        while local_ids.wants_more() {
            let id = self.ids.make(&mut self.rng);
            // Short ids may repeat, and a route must not end when an older, equal id expires.
            if !local_ids.is_routed(id) {
                local_ids.issue(id);
                self.events.push_back(EndpointEvent::AddId(id));
            }
        }
    }

    /// Ends the routes of retired ids that have expired by `now`.
    #[inline]
    pub(crate) fn forget_retired_ids(&mut self, local_ids: &mut LocalIds, now: Time) {
        while let Some(id) = local_ids.take_expired(now) {
            self.events.push_back(EndpointEvent::RemoveId(id));
        }
    }
}
