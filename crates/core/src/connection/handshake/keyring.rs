//! The 1-RTT keys and their updates (RFC 9001 §6).
//!
//! Three slots for opening: previous, current, next. The next keys always exist, so that a packet
//! with the other phase bit costs the same whether or not it opens (RFC 9001 §6.3). A bit of an
//! unauthenticated header only picks a slot; the first packet that opens under the next keys
//! commits the update.

use squall_protect::{HeaderKey, KeyMaterial, PacketKey};
use squall_tls::{LevelMaterial, Secrets};

use crate::time::Time;

/// Slot of the keys before the last update.
pub(crate) const PREVIOUS: u8 = 0;
/// Slot of the keys in use.
pub(crate) const CURRENT: u8 = 1;
/// Slot of the keys of the next update.
pub(crate) const NEXT: u8 = 2;

/// Keys and phase of the 1-RTT level.
#[repr(C)]
pub(crate) struct KeyRing {
    // Only for updates.
    secrets: Secrets,
    next_local: KeyMaterial,
    previous: Option<PacketKey>,
    next: PacketKey,

    // For every packet.
    /// Header protection never changes with an update (RFC 9001 §6).
    pub(crate) local_header: HeaderKey,
    /// The same for received packets.
    pub(crate) remote_header: HeaderKey,
    /// The key that this end seals with.
    pub(crate) local: PacketKey,
    remote: PacketKey,
    phase: bool,
    phase_acked: bool,
    /// Whether an acknowledgement has left since the peer's last update; before that, the peer
    /// cannot know that we have followed (RFC 9001 §6.2).
    ack_sent: bool,
    /// When the previous keys are dropped (RFC 9001 §6.5).
    pub(crate) drop_previous_at: Option<Time>,
    /// Lowest number opened in the current phase; `None` until the peer has followed our update.
    first_received: Option<u64>,
    /// Lowest number sent in the current phase; it must be acknowledged before another update (RFC
    /// 9001 §6.1).
    first_sent: u64,
    sealed: u64,
    updates: u64,
    /// `updates` when the group being received was numbered.
    group_epoch: u64,
}

impl KeyRing {
    /// The first 1-RTT keys.
    #[must_use]
    pub(crate) fn new(material: &LevelMaterial, mut secrets: Secrets) -> Self {
        let (next_local, next_remote) = secrets.next();
        Self {
            local_header: HeaderKey::new(&material.local.header),
            remote_header: HeaderKey::new(&material.remote.header),
            local: PacketKey::new(&material.local.packet),
            remote: PacketKey::new(&material.remote.packet),
            previous: None,
            next: PacketKey::new(&next_remote),
            next_local,
            secrets,
            phase: false,
            first_received: None,
            first_sent: 0,
            phase_acked: false,
            sealed: 0,
            drop_previous_at: None,
            updates: 0,
            ack_sent: true,
            group_epoch: 0,
        }
    }

    /// Prefetches the keys in use. A connection's own memory has already been prefetched, but not
    /// the memory that it refers to.
    #[inline]
    pub(crate) fn prefetch(&self) {
        self.remote_header.prefetch();
        self.remote.prefetch();
        self.local.prefetch();
        self.local_header.prefetch();
    }

    /// Frees the tables of busy keys: 3 kB each, rebuilt by the next bundle.
    pub(crate) fn shed(&mut self) {
        self.local.shrink();
        self.remote.shrink();
    }

    /// The phase bit of packets to be sent.
    #[must_use]
    pub(crate) const fn phase(&self) -> bool {
        self.phase
    }

    /// Key updates so far, by either side.
    #[must_use]
    pub(crate) const fn updates(&self) -> u64 {
        self.updates
    }

    /// The slot for a packet with this phase bit and number.
    #[inline]
    #[must_use]
    pub(crate) fn slot(&self, phase: bool, number: u64) -> u8 {
        if phase == self.phase {
            CURRENT
        } else if self.updates > 0 && self.first_received.is_none_or(|first| number < first) {
            // RFC 9001 §6.5: older than the first packet of this phase, or the peer has not
            // followed our update yet.
            PREVIOUS
        } else {
            NEXT
        }
    }

    /// The opening key of a slot; the previous one may be gone.
    pub(crate) fn opening(&self, slot: u8) -> Option<&PacketKey> {
        match slot {
            PREVIOUS => self.previous.as_ref(),
            CURRENT => Some(&self.remote),
            _ => Some(&self.next),
        }
    }

    /// Slots handed out from now on refer to the phase of now, until the group's packets are noted.
    #[inline]
    pub(crate) fn begin_group(&mut self) {
        self.group_epoch = self.updates;
    }

    /// Records a packet that opened; `true` if it is the first under the next keys, so that the
    /// update has to be committed.
    #[inline]
    #[must_use]
    pub(crate) fn on_opened(&mut self, slot: u8, number: u64) -> bool {
        let turned = self.group_epoch != self.updates;
        match (slot, turned) {
            (NEXT, false) => return true,
            (CURRENT, false) | (NEXT, true)
                if self.first_received.is_none_or(|first| number < first) =>
            {
                self.first_received = Some(number);
            }
            _ => {}
        }
        false
    }

    /// A packet opened under the next keys: the peer has updated, and so do we (RFC 9001 §6.2).
    /// `false`: it has updated twice without knowing that we have followed, which is a
    /// KEY_UPDATE_ERROR.
    #[must_use]
    pub(crate) fn commit_remote_update(&mut self, number: u64, next_sent: u64) -> bool {
        let known = std::mem::replace(&mut self.ack_sent, false);
        self.turn(next_sent);
        self.first_received = Some(number);
        self.drop_previous_at = None;
        known
    }

    /// Records that an acknowledgement leaves under the current keys.
    pub(crate) const fn on_ack_sent(&mut self) {
        self.ack_sent = true;
    }

    /// Starts an update of our own, if the last one is settled (RFC 9001 §6.1).
    pub(crate) fn initiate(&mut self, next_sent: u64) -> bool {
        if !self.phase_acked || self.previous.is_some() {
            return false;
        }
        self.turn(next_sent);
        self.first_received = None;
        self.drop_previous_at = None;
        true
    }

    fn turn(&mut self, next_sent: u64) {
        let (local, remote) = self.secrets.next();
        self.local = PacketKey::new(&std::mem::replace(&mut self.next_local, local));
        let current = std::mem::replace(&mut self.next, PacketKey::new(&remote));
        self.previous = Some(std::mem::replace(&mut self.remote, current));
        self.phase = !self.phase;
        self.first_sent = next_sent;
        self.phase_acked = false;
        self.sealed = 0;
        self.updates += 1;
    }

    /// Whether the peer has followed our update, and no time is set yet for dropping the previous
    /// keys.
    pub(crate) const fn previous_keys_lack_end(&self) -> bool {
        self.previous.is_some() && self.drop_previous_at.is_none() && self.first_received.is_some()
    }

    /// Forgets the previous keys.
    pub(crate) fn drop_previous(&mut self) {
        self.previous = None;
        self.drop_previous_at = None;
    }

    /// Records that `largest` was acknowledged.
    #[inline]
    pub(crate) fn on_acked(&mut self, largest: u64) {
        self.phase_acked |= largest >= self.first_sent;
    }

    /// Counts packets sealed; returns how many this key has sealed.
    #[inline]
    pub(crate) fn on_sealed(&mut self, packets: u64) -> u64 {
        self.sealed += packets;
        self.sealed
    }

    /// Packets sealed with the current key.
    #[must_use]
    pub(crate) const fn sealed(&self) -> u64 {
        self.sealed
    }
}
