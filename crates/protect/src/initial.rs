//! Initial keys: known to anyone who saw the client's first connection id (RFC 9001 §5.2, RFC 9369
//! §3.3).

use hkdf::Hkdf;
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::keys::{HeaderKey, Keys, PacketKey, Pair};
use crate::material::{HeaderKeyMaterial, KeyMaterial};
use crate::suite::Suite;

/// QUIC version 2 (RFC 9369 §3.1). Every other number gets the constants of version 1.
const VERSION_2: u32 = 0x6b33_43cf;

/// RFC 9001 §5.2
const SALT_V1: [u8; 20] = [
    0x38, 0x76, 0x2c, 0xf7, 0xf5, 0x59, 0x34, 0xb3, 0x4d, 0x17, 0x9a, 0xe6, 0xa4, 0xc8, 0x0c, 0xad,
    0xcc, 0xbb, 0x7f, 0x0a,
];

/// RFC 9369 §3.3.1
const SALT_V2: [u8; 20] = [
    0x0d, 0xed, 0xe3, 0xde, 0xf7, 0x00, 0xa6, 0xdb, 0x81, 0x93, 0x81, 0xbe, 0x6e, 0x26, 0x9d, 0xcb,
    0xf9, 0xbd, 0x2e, 0xd9,
];

/// What differs between the versions: the salt, and the labels of the key schedule (RFC 9369
/// §3.3.2).
struct Schedule {
    salt: &'static [u8; 20],
    key: &'static [u8],
    iv: &'static [u8],
    hp: &'static [u8],
}

fn schedule(version: u32) -> Schedule {
    if version == VERSION_2 {
        Schedule {
            salt: &SALT_V2,
            key: b"quicv2 key",
            iv: b"quicv2 iv",
            hp: b"quicv2 hp",
        }
    } else {
        Schedule {
            salt: &SALT_V1,
            key: b"quic key",
            iv: b"quic iv",
            hp: b"quic hp",
        }
    }
}

/// The Initial keys of a connection, from the destination connection id of the client's first
/// Initial packet.
///
/// `side_client` says whose view it is: a client's local keys are the server's remote keys.
#[must_use]
pub fn keys(version: u32, client_dcid: &[u8], side_client: bool) -> Pair {
    let Pair { local, remote } = FirstKeys::new(version, client_dcid).into_pair();
    if side_client {
        Pair {
            local: remote,
            remote: local,
        }
    } else {
        Pair { local, remote }
    }
}

/// A server's Initial keys in two steps: first the client's keys, which open its first packet, then
/// its own, once that packet has opened and is to be answered.
pub struct FirstKeys {
    version: u32,
    initial: Hkdf<Sha256>,
    /// The keys that open the first packet.
    pub client: Keys,
}

impl FirstKeys {
    /// The keys for a first packet to this destination connection id.
    #[must_use]
    pub fn new(version: u32, client_dcid: &[u8]) -> Self {
        let schedule = schedule(version);
        let (_, initial) = Hkdf::<Sha256>::extract(Some(schedule.salt), client_dcid);
        let client = direction(&initial, b"client in", &schedule);
        Self {
            version,
            initial,
            client,
        }
    }

    /// The keys of both directions, as [`keys`] gives them to a server.
    #[must_use]
    pub fn into_pair(self) -> Pair {
        Pair {
            local: direction(&self.initial, b"server in", &schedule(self.version)),
            remote: self.client,
        }
    }
}

fn direction(initial: &Hkdf<Sha256>, label: &[u8], schedule: &Schedule) -> Keys {
    let secret = Zeroizing::new(expand_label::<32>(initial, label));
    let secret = Hkdf::<Sha256>::from_prk(secret.as_slice()).expect("a hash is a long enough key");
    let key = Zeroizing::new(expand_label::<16>(&secret, schedule.key));
    let hp = Zeroizing::new(expand_label::<16>(&secret, schedule.hp));
    let iv = expand_label::<12>(&secret, schedule.iv);
    // RFC 9001 §5.2: Initial packets use AEAD_AES_128_GCM.
    let packet = KeyMaterial::new(Suite::Aes128Gcm, key.as_slice(), &iv);
    let header = HeaderKeyMaterial::new(Suite::Aes128Gcm, hp.as_slice());
    Keys {
        packet: PacketKey::new(&packet.expect("16 bytes are an AES-128 key")),
        header: HeaderKey::new(&header.expect("16 bytes are an AES-128 key")),
    }
}

/// HKDF-Expand-Label with an empty context (RFC 8446 §7.1).
fn expand_label<const N: usize>(secret: &Hkdf<Sha256>, label: &[u8]) -> [u8; N] {
    const PREFIX: &[u8] = b"tls13 ";
    let mut out = [0; N];
    let out_len = (N as u16).to_be_bytes();
    let label_len = [(PREFIX.len() + label.len()) as u8];
    let info = [&out_len[..], &label_len, PREFIX, label, &[0]];
    secret
        .expand_multi_info(&info, &mut out)
        .expect("a key is shorter than 255 hashes");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    // test: a client's `keys` seal what `FirstKeys` opens, and open what it seals.
    #[test]
    fn first_keys_match_the_initial_keys_of_a_server() {
        use crate::{Outcome, PacketSpan};
        let dcid = [0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08];
        for version in [1, VERSION_2] {
            let client = keys(version, &dcid, true);
            let server = FirstKeys::new(version, &dcid).into_pair();
            for (from, to) in [(client.local, server.remote), (server.local, client.remote)] {
                let mut packet = [7; 64];
                packet[0] = 0xc0;
                let mut spans = [PacketSpan::new(0, 64, 17)];
                (spans[0].header_len, spans[0].packet_number) = (18, 7);
                from.packet.seal(&from.header, &mut packet, &mut spans, &[]);
                let mut spans = [PacketSpan::new(0, 64, 17)];
                to.header.unprotect(&mut packet, &mut spans);
                to.packet.open(&mut packet, &mut spans, 0);
                assert_eq!(spans[0].outcome, Outcome::Open);
                assert_eq!(packet[18..48], [7; 30]);
            }
        }
    }

    #[test]
    // test: RFC 9001 §A.1, RFC 9369 §A.1: the labels' HkdfLabel encodings show in the keys.
    fn initial_secrets_match_appendix_a() {
        let dcid = [0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08];
        for (version, first_bytes) in [
            (1, [0xc0, 0x0c, 0xf1, 0x51]),
            (VERSION_2, [0x14, 0xec, 0x9d, 0x6e]),
        ] {
            let (_, initial) = Hkdf::<Sha256>::extract(Some(schedule(version).salt), &dcid);
            let client = expand_label::<32>(&initial, b"client in");
            assert_eq!(client[..4], first_bytes);
        }
    }
}
