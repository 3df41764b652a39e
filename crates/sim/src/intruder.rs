//! Datagrams that no endpoint sent: copies of real ones at the wrong time, changed, cut, extended,
//! from elsewhere, and plain noise.

use std::collections::VecDeque;
use std::net::SocketAddr;

use squall_wire::Side;

use crate::network::Delivery;
use crate::rng::Rng;

/// Datagrams remembered for each receiver.
const REMEMBERED: usize = 64;

/// How often the intruder acts; chances from 0 to 1, each per arriving bundle.
#[derive(Clone, Debug, Default)]
pub struct Intrusion {
    /// Chance that an old datagram arrives again.
    pub replay: f64,
    /// Chance that a damaged copy arrives.
    pub damage: f64,
    /// Chance that noise arrives.
    pub noise: f64,
    /// Chance that a genuine datagram arrives again from another address.
    pub elsewhere: f64,
}

/// Fabricates datagrams.
#[derive(Debug)]
pub(crate) struct Intruder {
    rng: Rng,
    intrusion: Intrusion,
    remembered: [VecDeque<Vec<u8>>; 2],
    /// Datagrams fabricated so far.
    pub(crate) made: u64,
}

impl Intruder {
    pub(crate) fn new(seed: u64, intrusion: Intrusion) -> Self {
        Self {
            rng: Rng::new(seed ^ 0x6e6f_6973_6500),
            intrusion,
            remembered: Default::default(),
            made: 0,
        }
    }

    /// What arrives at `to` after a bundle: source and bytes. `sent` is the number of datagrams
    /// that connections have sent so far: without it, an intruder whose datagrams are answered by
    /// stateless resets, which are answered in turn (RFC 9000 §10.3.3), would go on for ever.
    pub(crate) fn follow(
        &mut self,
        to: Side,
        genuine: &Delivery,
        sent: u64,
    ) -> Vec<(SocketAddr, Vec<u8>)> {
        let Intrusion {
            replay,
            damage,
            noise,
            elsewhere,
        } = self.intrusion;
        if replay + damage + noise + elsewhere == 0.0 || self.made > sent {
            return Vec::new();
        }
        let stride = usize::from(genuine.segment_size).max(1);
        let pick = self.rng.below(genuine.bytes.len().div_ceil(stride) as u64) as usize;
        let datagram: Vec<u8> = genuine
            .bytes
            .chunks(stride)
            .nth(pick)
            .unwrap_or_default()
            .to_vec();
        let source = genuine.path.remote;
        let mut made = Vec::new();
        if self.rng.chance(damage) {
            made.push((source, self.damaged(datagram.clone())));
        }
        if self.rng.chance(noise) {
            made.push((source, self.noise(&datagram)));
        }
        if self.rng.chance(elsewhere) {
            let other = SocketAddr::from(([10, 9, 9, 9], source.port()));
            made.push((other, datagram.clone()));
        }
        if self.rng.chance(replay) {
            let remembered = &self.remembered[to as usize];
            let at = self.rng.below(remembered.len() as u64) as usize;
            made.extend(remembered.get(at).map(|old| (source, old.clone())));
        }
        // Reservoir-like: the first datagrams of a connection stay as likely as the last.
        let remembered = &mut self.remembered[to as usize];
        if remembered.len() < REMEMBERED {
            remembered.push_back(datagram);
        } else if self.rng.chance(0.1) {
            let at = self.rng.below(REMEMBERED as u64) as usize;
            remembered[at] = datagram;
        }
        self.made += made.len() as u64;
        made
    }

    /// Changes, cuts or extends a datagram.
    fn damaged(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
        match self.rng.below(4) {
            0 => bytes.truncate(1 + self.rng.below(bytes.len() as u64) as usize),
            1 => {
                let mut tail = vec![0; 1 + self.rng.below(200) as usize];
                self.rng.fill(&mut tail);
                bytes.extend_from_slice(&tail);
            }
            2 => {
                for _ in 0..=self.rng.below(8) {
                    let at = self.rng.below(bytes.len() as u64) as usize;
                    bytes[at] = self.rng.bits() as u8;
                }
            }
            // The leading fields: flags, version, ids, lengths.
            _ => {
                for _ in 0..=self.rng.below(3) {
                    let at = self.rng.below(bytes.len().min(40) as u64) as usize;
                    bytes[at] = self.rng.bits() as u8;
                }
            }
        }
        // Never version 0: anyone on the path can end a client's attempt with a Version Negotiation
        // packet (RFC 9000 §6.2).
        if let Some([first, version @ ..]) = bytes.first_chunk_mut::<5>()
            && *first & 0x80 != 0
            && *version == [0; 4]
        {
            *version = [0x0a; 4];
        }
        bytes
    }

    /// Random bytes, half of the time after the beginning of a genuine datagram.
    fn noise(&mut self, datagram: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 1 + self.rng.below(1500) as usize];
        self.rng.fill(&mut bytes);
        if self.rng.chance(0.5) {
            let kept = bytes.len().min(datagram.len()).min(9);
            bytes[..kept].copy_from_slice(&datagram[..kept]);
        }
        bytes
    }
}
