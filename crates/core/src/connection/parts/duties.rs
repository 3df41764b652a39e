//! Frames that the connection owes now and then, and `on_lost`, which returns the contents of any
//! lost frame to its owner (RFC 9000 §13.3).

use std::time::Duration;

use squall_wire::{AckFrequency, varint};

use super::handshake::PeerParameters;
use super::paths::Paths;
use crate::config::{AckFrequencyConfig, AckFrequencyRequest, TransportConfig};
use crate::sent_frame::SentFrame;
use crate::space::Space;
use crate::stream::Streams;

/// Acknowledgements to request per congestion window. Slow start needs 8 samples in a round to see
/// the delay rise (RFC 9406 §4.2). Later, packets that have arrived but are not yet acknowledged
/// fill the window without filling the path: with 4 instead of 8, CUBIC got a third of a link that
/// it shared with a stack that acknowledges every second packet.
const ACKS_OF_A_WINDOW: u64 = 8;
/// A threshold below this becomes 1, the behaviour of RFC 9000 §13.2.
const LEAST_ACK_THRESHOLD: u64 = 4;
/// The most packets between two acknowledgements: about twenty bundles.
const MOST_ACK_THRESHOLD: u64 = 1024;
/// The shortest and the longest delay requested: one that a busy machine can keep, since the probe
/// timeout relies on it, and the default of RFC 9000 §18.2.
const ACK_DELAYS: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(25)];

/// Frames that are due once.
#[derive(Debug)]
pub(crate) struct Duties {
    /// A PING. It is not repeated if lost.
    pub(crate) ping: bool,
    /// Servers: HANDSHAKE_DONE.
    pub(crate) handshake_done: bool,
    /// Servers: number of NEW_TOKEN frames still due.
    pub(crate) new_tokens: u8,
    /// The most that may be due.
    most_new_tokens: u8,
    /// ACK_FREQUENCY.
    pub(crate) ack_frequency: AckRequest,
    /// The next probe of a probe timeout must be small enough for any path (RFC 8899 §4.3).
    pub(crate) small_probe: bool,
    /// The application has written to a stream, or finished one, since the peer's last
    /// acknowledgement: the peer may be about to answer.
    pub(crate) answer_due: bool,
    /// The application needs packets as large as the path allows, even if it sends little.
    pub(crate) large_packets: bool,
}

/// What this end requests of the peer's acknowledgements (draft-ietf-quic-ack-frequency §4).
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckRequest {
    how: AckFrequencyRequest,
    /// Requests made so far.
    count: u64,
    /// Whether another one is due.
    pub(crate) due: bool,
    /// The current or last request.
    wanted: AckFrequencyConfig,
}

impl AckRequest {
    /// Until the first request, RFC 9000 §13.2 applies.
    fn new(how: AckFrequencyRequest) -> Self {
        Self {
            how,
            count: 0,
            due: false,
            wanted: AckFrequencyConfig {
                ack_eliciting_threshold: 1,
                max_ack_delay: Duration::ZERO,
                reordering_threshold: 3,
            },
        }
    }

    /// Requests what the configuration fixes, if anything.
    pub(crate) const fn begin(&mut self) {
        if let AckFrequencyRequest::Fixed(wanted) = self.how {
            self.wanted = wanted;
            self.due = true;
        }
    }

    /// Ack-eliciting packets that the peer may receive without an immediate acknowledgement.
    pub(crate) const fn threshold(&self) -> u64 {
        self.wanted.ack_eliciting_threshold
    }

    /// Derives the threshold from the window (`packets`), and makes a request due once it has
    /// doubled or fallen by a quarter (draft-ietf-quic-ack-frequency §6): each acknowledgement
    /// costs a system call at either end.
    pub(crate) fn adapt(&mut self, packets: u64, rtt: Duration) {
        if self.how != AckFrequencyRequest::Adaptive {
            return;
        }
        let threshold = match packets / ACKS_OF_A_WINDOW {
            few if few < LEAST_ACK_THRESHOLD => 1,
            many => many.min(MOST_ACK_THRESHOLD),
        };
        let before = self.wanted.ack_eliciting_threshold;
        // The bound for falling is tighter, since too few acknowledgements do harm: reducing a
        // window to 0.7 triggers a request at once.
        if threshold >= 2 * before || 4 * threshold <= 3 * before {
            self.wanted.ack_eliciting_threshold = threshold;
            self.wanted.max_ack_delay = (rtt / 4).clamp(ACK_DELAYS[0], ACK_DELAYS[1]);
            self.due = true;
        }
    }

    /// Takes the request that is due; `None` if the peer does not support requests.
    pub(crate) fn take(&mut self, peer: &mut PeerParameters) -> Option<AckFrequency> {
        self.due = false;
        let delay = self.wanted.max_ack_delay.max(peer.min_ack_delay?);
        let sequence = self.count;
        self.count += 1;
        // draft-ietf-quic-ack-frequency §7: the larger of both until it is acknowledged.
        peer.max_ack_delay = peer.max_ack_delay.max(delay);
        Some(AckFrequency {
            sequence,
            ack_eliciting_threshold: self.wanted.ack_eliciting_threshold.min(varint::MAX),
            max_ack_delay_us: u64::try_from(delay.as_micros()).unwrap_or(varint::MAX),
            reordering_threshold: self.wanted.reordering_threshold.min(varint::MAX),
        })
    }

    /// draft-ietf-quic-ack-frequency §7: the peer follows the newest request once it has
    /// acknowledged it.
    pub(crate) fn on_acked(&self, sequence: u64, peer: &mut PeerParameters) {
        if sequence + 1 == self.count {
            let least = peer.min_ack_delay.unwrap_or_default();
            peer.max_ack_delay = self.wanted.max_ack_delay.max(least);
        }
    }
}

impl Duties {
    /// Nothing is due.
    pub(crate) fn new(config: &TransportConfig) -> Self {
        Self {
            ping: false,
            handshake_done: false,
            new_tokens: 0,
            most_new_tokens: config.new_tokens,
            ack_frequency: AckRequest::new(config.ack_frequency),
            small_probe: false,
            answer_due: false,
            large_packets: false,
        }
    }

    /// Whether any of the frames is due.
    #[inline]
    pub(crate) const fn wants_to_send(&self) -> bool {
        self.ping || self.ack_frequency.due || self.handshake_done || self.new_tokens > 0
    }

    /// A server's handshake is complete.
    pub(crate) const fn on_handshake_complete(&mut self) {
        self.handshake_done = true;
        self.new_tokens = self.most_new_tokens;
    }

    /// The client has moved: its tokens were made for another address (RFC 9000 §9.3).
    pub(crate) fn on_client_moved(&mut self) {
        self.new_tokens = self.most_new_tokens.min(1);
    }

    /// A frame sent in `space` was lost: what still matters of it is owed again (RFC 9000 §13.3).
    pub(crate) fn on_lost(
        &mut self,
        frame: SentFrame,
        space: &mut Space,
        paths: &mut Paths,
        streams: &mut Streams,
    ) {
        match frame {
            SentFrame::Stream {
                id,
                start,
                len,
                fin,
            } => streams.on_lost(id, start, len, fin),
            SentFrame::Crypto { start, len } => {
                space.crypto_send.on_lost(start..start + u64::from(len));
            }
            SentFrame::NewConnectionId(sequence) => paths.local_ids.on_lost(sequence),
            SentFrame::RetireConnectionId(sequence) => paths.remote_ids.on_lost(sequence),
            SentFrame::HandshakeDone => self.handshake_done = true,
            // A fresh one is as good. A frame may be lost twice: by a probe timeout, and later.
            SentFrame::NewToken => {
                let due = self.new_tokens.saturating_add(1);
                self.new_tokens = due.min(self.most_new_tokens);
            }
            SentFrame::AckFrequency(sequence) => {
                self.ack_frequency.due |= sequence + 1 == self.ack_frequency.count;
            }
            SentFrame::Ack { .. } => {}
            control => streams.on_control_lost(control),
        }
    }
}
