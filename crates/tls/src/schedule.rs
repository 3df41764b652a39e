//! From a traffic secret to keys (RFC 9001 §5.1, RFC 9369 §3.3.2), for whichever version the
//! connection uses.

use rustls::crypto::tls13::{Hkdf, HkdfExpander, OkmBlock};
use rustls::{CipherSuite, Tls13CipherSuite};
use squall_protect::{HeaderKeyMaterial, KeyMaterial, Suite};
use zeroize::Zeroizing;

/// QUIC version 2 (RFC 9369 §3.1). Every other number gets the labels of version 1.
const VERSION_2: u32 = 0x6b33_43cf;

/// The key material of one direction of one encryption level (RFC 9001 §5.1).
pub struct DirectionMaterial {
    /// AEAD key and IV: "quic key" and "quic iv".
    pub packet: KeyMaterial,
    /// Header protection key: "quic hp". Key updates leave it unchanged (RFC 9001 §6.1).
    pub header: HeaderKeyMaterial,
}

/// The key material of one encryption level, both directions.
pub struct LevelMaterial {
    /// For packets that this endpoint sends.
    pub local: DirectionMaterial,
    /// For packets that the peer sends.
    pub remote: DirectionMaterial,
}

/// The traffic secrets of one level, both directions.
pub(crate) struct LevelSecrets {
    /// For packets that this endpoint sends.
    pub(crate) local: OkmBlock,
    /// For packets that the peer sends.
    pub(crate) remote: OkmBlock,
}

/// The packet protection of a TLS suite (RFC 9001 §5.3); `None` if squall does not support it.
pub(crate) fn suite_of(suite: &Tls13CipherSuite) -> Option<Suite> {
    Some(match suite.common.suite {
        CipherSuite::TLS13_AES_128_GCM_SHA256 => Suite::Aes128Gcm,
        CipherSuite::TLS13_AES_256_GCM_SHA384 => Suite::Aes256Gcm,
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => Suite::ChaCha20Poly1305,
        _ => return None,
    })
}

/// How secrets of one suite become keys of one version.
#[derive(Clone, Copy)]
pub(crate) struct Schedule {
    hkdf: &'static dyn Hkdf,
    suite: Suite,
    version: u32,
}

impl Schedule {
    /// The schedule of a suite; `None` if squall does not support it.
    pub(crate) fn new(of: &'static Tls13CipherSuite, version: u32) -> Option<Self> {
        Some(Self {
            hkdf: of.hkdf_provider,
            suite: suite_of(of)?,
            version,
        })
    }

    /// The keys of one direction.
    pub(crate) fn direction(&self, secret: &OkmBlock) -> DirectionMaterial {
        let expander = self.hkdf.expander_for_okm(secret);
        let mut hp = Zeroizing::new([0; MAX_KEY]);
        let hp = &mut hp[..self.suite.key_len()];
        expand_label(&*expander, self.label("quic hp", "quicv2 hp"), hp);
        DirectionMaterial {
            packet: self.packet(&*expander),
            header: HeaderKeyMaterial::new(self.suite, hp).expect("as many bytes as the suite has"),
        }
    }

    /// The keys of a level.
    pub(crate) fn level(&self, secrets: &LevelSecrets) -> LevelMaterial {
        LevelMaterial {
            local: self.direction(&secrets.local),
            remote: self.direction(&secrets.remote),
        }
    }

    fn packet(&self, expander: &dyn HkdfExpander) -> KeyMaterial {
        let (mut key, mut iv) = (Zeroizing::new([0; MAX_KEY]), [0; 12]);
        let key = &mut key[..self.suite.key_len()];
        expand_label(expander, self.label("quic key", "quicv2 key"), key);
        expand_label(expander, self.label("quic iv", "quicv2 iv"), &mut iv);
        KeyMaterial::new(self.suite, key, &iv).expect("as many bytes as the suite has")
    }

    /// The secret after a key update (RFC 9001 §6.1).
    fn updated(&self, secret: &OkmBlock) -> OkmBlock {
        let expander = self.hkdf.expander_for_okm(secret);
        let mut next = Zeroizing::new([0; OkmBlock::MAX_LEN]);
        let next = &mut next[..expander.hash_len()];
        expand_label(&*expander, self.label("quic ku", "quicv2 ku"), next);
        OkmBlock::new(next)
    }

    const fn label(&self, v1: &'static str, v2: &'static str) -> &'static str {
        if self.version == VERSION_2 { v2 } else { v1 }
    }
}

/// Bytes of the longest key.
const MAX_KEY: usize = 32;

/// HKDF-Expand-Label with an empty context (RFC 8446 §7.1).
fn expand_label(expander: &dyn HkdfExpander, label: &str, out: &mut [u8]) {
    const PREFIX: &[u8] = b"tls13 ";
    let length = (out.len() as u16).to_be_bytes();
    let label_len = [(PREFIX.len() + label.len()) as u8];
    let info = [&length[..], &label_len, PREFIX, label.as_bytes(), &[0]];
    expander
        .expand_slice(&info, out)
        .expect("keys are shorter than 255 hashes");
}

/// The secrets from which the packet keys of later key phases are derived (RFC 9001 §6.1).
pub struct Secrets {
    schedule: Schedule,
    local: OkmBlock,
    remote: OkmBlock,
}

impl Secrets {
    pub(crate) fn new(schedule: Schedule, LevelSecrets { local, remote }: LevelSecrets) -> Self {
        Self {
            schedule,
            local,
            remote,
        }
    }

    /// The packet keys of the next key phase, local then remote. The first call returns those of
    /// the first key update; header protection keys do not change (RFC 9001 §6.1).
    #[expect(
        clippy::should_implement_trait,
        reason = "key phases never end, and a caller that iterates over them would be wrong"
    )]
    pub fn next(&mut self) -> (KeyMaterial, KeyMaterial) {
        let Self { schedule, .. } = *self;
        let [local, remote] = [&mut self.local, &mut self.remote].map(|secret| {
            *secret = schedule.updated(secret);
            schedule.packet(&*schedule.hkdf.expander_for_okm(secret))
        });
        (local, remote)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hkdf::tests::hex;

    fn schedule(suite: Suite, version: u32) -> Schedule {
        let provider = crate::provider();
        let mut schedules = (provider.cipher_suites.iter())
            .filter_map(|known| Schedule::new(known.tls13()?, version));
        schedules.find(|known| known.suite == suite).unwrap()
    }

    fn expanded(suite: Suite, version: u32, secret: &[u8], label: [&'static str; 2]) -> Vec<u8> {
        let schedule = schedule(suite, version);
        let mut out = vec![
            0;
            if label[0] == "quic iv" {
                12
            } else {
                suite.key_len()
            }
        ];
        let expander = schedule.hkdf.expander_for_okm(&OkmBlock::new(secret));
        expand_label(&*expander, schedule.label(label[0], label[1]), &mut out);
        out
    }

    // test: RFC 9001 §A.1, RFC 9369 §A.1
    #[test]
    fn initial_keys_match_the_rfcs_in_both_versions() {
        let v1 = "c00cf151ca5be075ed0ebfb5c80323c42d6b7db67881289af4008f1f6c357aea";
        let v2 = "14ec9d6eb9fd7af83bf5a668bc17a7e283766aade7ecd0891f70f9ff7f4bf47b";
        for (version, secret, [key, iv, hp]) in [
            (
                1,
                v1,
                [
                    "1f369613dd76d5467730efcbe3b1a22d",
                    "fa044b2f42a3fd3b46fb255c",
                    "9f50449e04a0e810283a1e9933adedd2",
                ],
            ),
            (
                VERSION_2,
                v2,
                [
                    "8b1a0bc121284290a29e0971b5cd045d",
                    "91f73e2351d8fa91660e909f",
                    "45b95e15235d6f45a6b19cbcb0294ba9",
                ],
            ),
        ] {
            let get = |label| expanded(Suite::Aes128Gcm, version, &hex(secret), label);
            assert_eq!(get(["quic key", "quicv2 key"]), hex(key));
            assert_eq!(get(["quic iv", "quicv2 iv"]), hex(iv));
            assert_eq!(get(["quic hp", "quicv2 hp"]), hex(hp));
        }
    }

    // test: RFC 9001 §A.5, RFC 9369 §A.5: ChaCha20-Poly1305, with the secret of the next phase.
    #[test]
    fn chacha20_keys_and_the_next_secret_match_the_rfcs() {
        let secret = hex("9ac312a7f877468ebe69422748ad00a15443f18203a07d6060f688f30f21632b");
        for (version, [key, iv, hp, ku]) in [
            (
                1,
                [
                    "c6d98ff3441c3fe1b2182094f69caa2ed4b716b65488960a7a984979fb23e1c8",
                    "e0459b3474bdd0e44a41c144",
                    "25a282b9e82f06f21f488917a4fc8f1b73573685608597d0efcb076b0ab7a7a4",
                    "1223504755036d556342ee9361d253421a826c9ecdf3c7148684b36b714881f9",
                ],
            ),
            (
                VERSION_2,
                [
                    "3bfcddd72bcf02541d7fa0dd1f5f9eeea817e09a6963a0e6c7df0f9a1bab90f2",
                    "a6b5bc6ab7dafce30ffff5dd",
                    "d659760d2ba434a226fd37b35c69e2da8211d10c4f12538787d65645d5d1b8e2",
                    "c69374c49e3d2a9466fa689e49d476db5d0dfbc87d32ceeaa6343fd0ae4c7d88",
                ],
            ),
        ] {
            let get = |label| expanded(Suite::ChaCha20Poly1305, version, &secret, label);
            assert_eq!(get(["quic key", "quicv2 key"]), hex(key));
            assert_eq!(get(["quic iv", "quicv2 iv"]), hex(iv));
            assert_eq!(get(["quic hp", "quicv2 hp"]), hex(hp));
            let schedule = schedule(Suite::ChaCha20Poly1305, version);
            let next = schedule.updated(&OkmBlock::new(&secret));
            assert_eq!(next.as_ref(), hex(ku));
        }
    }
}
