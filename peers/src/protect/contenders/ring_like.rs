//! ring and aws-lc-rs: the same interface twice, the one that QUIC stacks with rustls call.

use squall_peers_table::nonce;
use squall_protect::SAMPLE_LEN;

use super::super::args::{Name, Suite};
use super::super::material;
use super::{Entrant, OneByOne, Peer, parts};

/// A peer over one of the two crates.
macro_rules! peer {
    ($peer:ident, $library:ident) => {
        struct $peer {
            aead: ::$library::aead::LessSafeKey,
            header: ::$library::aead::quic::HeaderProtectionKey,
        }

        impl $peer {
            fn expand(suite: Suite) -> Option<Self> {
                use ::$library::aead::{self, quic};
                let (aead, header) = match suite {
                    Suite::Aes128Gcm => (&aead::AES_128_GCM, &quic::AES_128),
                    Suite::Aes256Gcm => (&aead::AES_256_GCM, &quic::AES_256),
                    Suite::ChaCha20Poly1305 => (&aead::CHACHA20_POLY1305, &quic::CHACHA20),
                };
                let key = aead::UnboundKey::new(aead, material::key(suite)).ok()?;
                let header =
                    quic::HeaderProtectionKey::new(header, material::header_key(suite)).ok()?;
                Some(Self {
                    aead: aead::LessSafeKey::new(key),
                    header,
                })
            }
        }

        impl Peer for $peer {
            #[inline]
            fn seal(&mut self, packet: &mut [u8], number: u64) -> bool {
                use ::$library::aead::{Aad, Nonce};
                let Some((header, payload, tag)) = parts(packet) else {
                    return false;
                };
                let nonce = Nonce::assume_unique_for_key(nonce(&material::IV, number));
                match (self.aead).seal_in_place_separate_tag(nonce, Aad::from(header), payload) {
                    Ok(made) => {
                        tag.copy_from_slice(made.as_ref());
                        true
                    }
                    Err(_) => false,
                }
            }

            #[inline]
            fn open(&mut self, packet: &mut [u8], number: u64) -> bool {
                use ::$library::aead::{Aad, Nonce};
                let Some((header, rest)) =
                    packet.split_at_mut_checked(super::super::packets::HEADER_LEN)
                else {
                    return false;
                };
                let nonce = Nonce::assume_unique_for_key(nonce(&material::IV, number));
                (self.aead)
                    .open_in_place(nonce, Aad::from(&*header), rest)
                    .is_ok()
            }

            #[inline]
            fn mask(&mut self, sample: &[u8; SAMPLE_LEN]) -> Option<[u8; 5]> {
                self.header.new_mask(sample).ok()
            }
        }
    };
}

peer!(Ring, ring);
peer!(AwsLcRs, aws_lc_rs);

pub(crate) fn ring() -> Entrant {
    Entrant {
        name: Name::Ring,
        version: super::package("ring"),
        kernel: super::UNTOLD.to_owned(),
        expand: Box::new(|suite| Some(Box::new(OneByOne(Ring::expand(suite)?)))),
    }
}

pub(crate) fn aws_lc_rs() -> Entrant {
    let version = format!(
        "{}, AWS-LC {}",
        super::package("aws-lc-rs"),
        ::aws_lc_rs::awslc_version()
    );
    Entrant {
        name: Name::AwsLcRs,
        version,
        kernel: super::UNTOLD.to_owned(),
        expand: Box::new(|suite| Some(Box::new(OneByOne(AwsLcRs::expand(suite)?)))),
    }
}
