//! Connection ids from which a load balancer can read a server's number
//! (draft-ietf-quic-load-balancers §3, §5).
//!
//! ```text
//!  first octet: rotation (3 bits), length or random (5 bits) │ server id │ nonce
//!                                                              sealed together if there is a key
//! ```
//! If workers share the server id, the random bits are drawn so that the octet names the worker in
//! the same way as all ids here ([`worker_of`](crate::worker_of)): the kernel's steering and the
//! workers' own see no difference. Each worker has its own part of the nonces (§7.2).

use aes::Aes128;
use aes::cipher::{BlockCipherEncrypt, KeyInit};
use rand::RngCore;
use squall_wire::ConnectionId;

use crate::config::QuicLb;

/// The most bytes that server id and nonce take together (§5.3).
const MAX_PLAINTEXT: usize = ConnectionId::MAX_LEN - 1;

/// Makes the ids of one configuration.
pub(crate) struct Encoder {
    config: QuicLb,
    cipher: Option<Aes128>,
    worker: u8,
    workers: u8,
}

impl Encoder {
    /// For a configuration that has been checked.
    pub(crate) fn new(config: QuicLb, worker: u8, workers: u8) -> Self {
        let cipher = config.key.as_ref().map(|key| Aes128::new(key.into()));
        Self {
            config,
            cipher,
            worker,
            workers: workers.max(1),
        }
    }

    /// Bytes of every id.
    pub(crate) fn len(&self) -> usize {
        1 + self.config.plaintext_len()
    }

    /// The id number `count`. With a key the number is the nonce, so that no id repeats; without
    /// one the nonce is random, because a growing number would be visible to all (§5.4).
    pub(crate) fn make(&self, count: u64, rng: &mut impl RngCore) -> ConnectionId {
        let mut nonce = [0; MAX_PLAINTEXT];
        let nonce = &mut nonce[..self.config.nonce_len.min(MAX_PLAINTEXT)];
        if self.cipher.is_some() {
            let number = self.share(count, nonce.len()).to_be_bytes();
            let taken = nonce.len().min(number.len());
            let at = nonce.len() - taken;
            nonce[at..].copy_from_slice(&number[number.len() - taken..]);
        } else {
            rng.fill_bytes(nonce);
        }
        self.encode(self.name_worker(rng.next_u32()), nonce)
    }

    /// Nonce number `count` among this worker's, of `len` bytes.
    fn share(&self, count: u64, len: usize) -> u64 {
        let all = 1_u128 << (8 * len.min(8));
        let own = all / u128::from(self.workers);
        (own * u128::from(self.worker) + u128::from(count) % own) as u64
    }

    /// Five bits, random among those with which the first octet names the worker.
    fn name_worker(&self, random: u32) -> u8 {
        let workers = u32::from(self.workers);
        let rotation = u32::from(self.config.rotation) << 5;
        let least = (u32::from(self.worker) + workers - rotation % workers) % workers;
        let choices = (32_u32.saturating_sub(least)).div_ceil(workers).max(1);
        (least + random % choices * workers) as u8 & 0x1f
    }

    fn encode(&self, random: u8, nonce: &[u8]) -> ConnectionId {
        let mut id = [0; ConnectionId::MAX_LEN];
        let len = self.config.plaintext_len();
        let low = if self.config.encode_length {
            len as u8
        } else {
            random
        };
        id[0] = self.config.rotation << 5 | low;
        let server = &self.config.server_id;
        let plaintext = &mut id[1..=len];
        plaintext[..server.len()].copy_from_slice(server);
        plaintext[server.len()..].copy_from_slice(nonce);
        if let Some(cipher) = &self.cipher {
            encrypt(cipher, plaintext);
        }
        ConnectionId::new(&id[..=len]).unwrap_or(ConnectionId::EMPTY)
    }
}

/// §5.4.1, §5.4.2.
fn encrypt(cipher: &Aes128, plaintext: &mut [u8]) {
    if let Ok(block) = <&mut [u8; 16]>::try_from(&mut *plaintext) {
        cipher.encrypt_block(block.into());
        return;
    }
    let mut halves = Halves::split(plaintext);
    for pass in 1..=4 {
        halves.turn(cipher, pass);
    }
    halves.join(plaintext);
}

/// The two halves of a plaintext; with an odd number of bytes they share the middle one, four bits
/// each.
struct Halves {
    left: [u8; 10],
    right: [u8; 10],
    /// Bytes of each.
    half: usize,
    /// Bytes of both together.
    len: usize,
}

impl Halves {
    fn split(plaintext: &[u8]) -> Self {
        let len = plaintext.len();
        let half = len.div_ceil(2);
        let mut halves = Self {
            left: [0; 10],
            right: [0; 10],
            half,
            len,
        };
        halves.left[..half].copy_from_slice(&plaintext[..half]);
        halves.right[..half].copy_from_slice(&plaintext[len - half..]);
        halves.clear();
        halves
    }

    /// Clears the four bits that belong to the other half.
    fn clear(&mut self) {
        if !self.len.is_multiple_of(2) {
            self.left[self.half - 1] &= 0xf0;
            self.right[0] &= 0x0f;
        }
    }

    /// One pass: odd ones change the right half, even ones the left.
    fn turn(&mut self, cipher: &Aes128, pass: u8) {
        let (from, to) = if pass % 2 == 1 {
            (&self.left, &mut self.right)
        } else {
            (&self.right, &mut self.left)
        };
        // §5.4.2.2, expand.
        let mut block = [0; 16];
        block[..self.half].copy_from_slice(&from[..self.half]);
        (block[14], block[15]) = (self.len as u8, pass);
        cipher.encrypt_block((&mut block).into());
        for (to, with) in to[..self.half].iter_mut().zip(block) {
            *to ^= with;
        }
        self.clear();
    }

    fn join(&self, out: &mut [u8]) {
        let (half, len) = (self.half, self.len);
        out[..half].copy_from_slice(&self.left[..half]);
        let shared = out[len - half];
        out[len - half..].copy_from_slice(&self.right[..half]);
        if !len.is_multiple_of(2) {
            out[len - half] |= shared;
        }
    }
}

#[cfg(test)]
mod tests {
    use aes::cipher::BlockCipherDecrypt;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let byte = |i| u8::from_str_radix(&text[i..i + 2], 16).unwrap();
        (0..text.len()).step_by(2).map(byte).collect()
    }

    fn encoder(rotation: u8, server_id: &[u8], nonce_len: usize, key: Option<&str>) -> Encoder {
        let mut config = QuicLb::new(rotation, server_id, nonce_len).encode_length(true);
        config.key = key.map(|key| hex(key).try_into().unwrap());
        config.check_fields().unwrap();
        Encoder::new(config, 0, 1)
    }

    /// Decodes an id as a load balancer does (§5.5).
    fn decode(encoder: &Encoder, id: &[u8]) -> Vec<u8> {
        let mut plaintext = id[1..].to_vec();
        if let Some(cipher) = &encoder.cipher {
            if let Ok(block) = <&mut [u8; 16]>::try_from(&mut plaintext[..]) {
                cipher.decrypt_block(block.into());
            } else {
                let mut halves = Halves::split(&plaintext);
                for pass in (1..=4).rev() {
                    halves.turn(cipher, pass);
                }
                halves.join(&mut plaintext);
            }
        }
        plaintext[..encoder.config.server_id.len()].to_vec()
    }

    const KEY: &str = "8f95f09245765f80256934e50c66207f";

    // test: draft-ietf-quic-load-balancers §B.1, §B.2. (The second example of §B.1 is half a byte
    // short.)
    #[test]
    fn the_vectors_of_the_draft_are_reproduced() {
        for (rotation, key, server, nonce, id) in [
            (0, None, "c4605e", "4504cc4f", "07c4605e4504cc4f"),
            (0, Some(KEY), "ed793a", "ee080dbf", "0720b1d07b359d3c"),
            (
                1,
                Some(KEY),
                "ed793a51d49b8f5fab65",
                "ee080dbf48",
                "2fcc381bc74cb4fbad2823a3d1f8fed2",
            ),
            (
                2,
                Some(KEY),
                "ed793a51d49b8f5f",
                "ee080dbf48c0d1e5",
                "504dd2d05a7b0de9b2b9907afb5ecf8cc3",
            ),
            (
                3,
                Some(KEY),
                "ed793a51d49b8f5fab",
                "ee080dbf48c0d1e55d",
                "125779c9cc86beb3a3a4a3ca96fce4bfe0cdbc",
            ),
        ] {
            let (server, nonce) = (hex(server), hex(nonce));
            let encoder = encoder(rotation, &server, nonce.len(), key);
            let made = encoder.encode(0, &nonce);
            let mut expected = hex(id);
            if rotation == 3 {
                // §B.2 gives its last id without rotation bits.
                expected[0] |= 3 << 5;
            }
            assert_eq!(made.as_slice(), expected, "{id}");
            assert_eq!(decode(&encoder, made.as_slice()), server);
        }
    }

    // test: draft-ietf-quic-load-balancers §5.4.2.4
    #[test]
    fn the_example_of_the_draft_is_reproduced() {
        let key = "fdf726a9893ec05c0632d3956680baf0";
        let encoder = encoder(0, &hex("31441a"), 4, Some(key));
        let id = encoder.encode(0, &hex("9c69c275"));
        assert_eq!(id.as_slice(), hex("0767947d29be054a"));
    }

    #[test]
    fn every_length_decodes_and_no_id_repeats() {
        let mut rng = StdRng::from_seed([5; 32]);
        for server_len in 1..=15 {
            for nonce_len in 4..=MAX_PLAINTEXT - server_len {
                let server: Vec<u8> = (0..server_len as u8).map(|i| i * 17 + 3).collect();
                let encoder = encoder(4, &server, nonce_len, Some(KEY));
                let mut seen = std::collections::HashSet::new();
                for count in 0..50 {
                    let id = encoder.make(count, &mut rng);
                    assert_eq!(id.len(), 1 + server_len + nonce_len);
                    assert_eq!(id.as_slice()[0], 0x80 | (server_len + nonce_len) as u8);
                    assert_eq!(decode(&encoder, id.as_slice()), server);
                    assert!(seen.insert(id), "{server_len} {nonce_len} {count}");
                }
            }
        }
    }

    #[test]
    fn without_a_length_the_first_byte_reveals_only_the_rotation() {
        let mut rng = StdRng::from_seed([6; 32]);
        let mut encoder = encoder(6, &[1, 2], 8, None);
        encoder.config.encode_length = false;
        let firsts: std::collections::HashSet<u8> = (0..100)
            .map(|count| encoder.make(count, &mut rng).as_slice()[0])
            .collect();
        assert!(firsts.len() > 20 && firsts.iter().all(|f| f >> 5 == 6));
    }

    #[test]
    fn the_first_byte_names_the_worker_and_workers_split_the_nonces() {
        let mut rng = StdRng::from_seed([7; 32]);
        for (rotation, workers) in [(0, 1), (1, 2), (2, 3), (3, 7), (5, 31), (6, 32)] {
            let mut seen = std::collections::HashSet::new();
            for worker in 0..workers {
                let config = QuicLb::new(rotation, [1, 2], 4).key([9; 16]);
                let encoder = Encoder::new(config, worker, workers);
                let mut firsts = std::collections::HashSet::new();
                // Over the end of the worker's nonces, too.
                let end = 5 * ((1_u64 << 32) / u64::from(workers));
                for count in 0..200 {
                    let id = encoder.make(end - 100 + count, &mut rng);
                    let first = id.as_slice()[0];
                    assert_eq!(first >> 5, rotation);
                    assert_eq!(crate::worker_of(first, workers), worker, "of {workers}");
                    assert_eq!(decode(&encoder, id.as_slice()), [1, 2]);
                    assert!(seen.insert(id.as_slice()[1..].to_vec()));
                    firsts.insert(first);
                }
                let choices = 32 / usize::from(workers);
                assert!(2 * firsts.len() > choices && firsts.len() <= choices + 1);
            }
        }
    }
}
