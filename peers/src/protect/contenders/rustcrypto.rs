//! RustCrypto: the AEAD crates, and the ciphers alone for header protection.

use aes_gcm::aead::inout::InOutBuf;
use aes_gcm::aead::{AeadInOut, KeyInit};
use chacha20::ChaCha20;
use chacha20::cipher::{BlockCipherEncrypt, KeyIvInit, StreamCipher, StreamCipherSeek};
use squall_peers_table::nonce;
use squall_protect::SAMPLE_LEN;

use super::super::args::{Name, Suite};
use super::super::material;
use super::{Contender, Entrant, OneByOne, Peer, parts};

pub(crate) fn entrant() -> Entrant {
    let kernel = if aes::hardware_accelerated() {
        "AES instructions; which ones is not reported"
    } else {
        "no AES instructions"
    };
    Entrant {
        name: Name::RustCrypto,
        version: format!(
            "{}, {}",
            super::package("aes-gcm"),
            super::package("chacha20poly1305")
        ),
        kernel: kernel.to_owned(),
        expand: Box::new(expand),
    }
}

fn expand(suite: Suite) -> Option<Box<dyn Contender>> {
    let (key, header) = (material::key(suite), HeaderCipher::expand(suite)?);
    Some(match suite {
        Suite::Aes128Gcm => {
            let aead = aes_gcm::Aes128Gcm::new_from_slice(key).ok()?;
            Box::new(OneByOne(RustCrypto { aead, header }))
        }
        Suite::Aes256Gcm => {
            let aead = aes_gcm::Aes256Gcm::new_from_slice(key).ok()?;
            Box::new(OneByOne(RustCrypto { aead, header }))
        }
        Suite::ChaCha20Poly1305 => {
            let aead = chacha20poly1305::ChaCha20Poly1305::new_from_slice(key).ok()?;
            Box::new(OneByOne(RustCrypto { aead, header }))
        }
    })
}

struct RustCrypto<A> {
    aead: A,
    header: HeaderCipher,
}

impl<A> Peer for RustCrypto<A>
where
    A: AeadInOut<NonceSize = aes_gcm::aead::consts::U12, TagSize = aes_gcm::aead::consts::U16>,
{
    #[inline]
    fn seal(&mut self, packet: &mut [u8], number: u64) -> bool {
        let Some((header, payload, tag)) = parts(packet) else {
            return false;
        };
        let nonce = nonce(&material::IV, number).into();
        match (self.aead).encrypt_inout_detached(&nonce, header, InOutBuf::from(payload)) {
            Ok(made) => {
                *tag = made.into();
                true
            }
            Err(_) => false,
        }
    }

    #[inline]
    fn open(&mut self, packet: &mut [u8], number: u64) -> bool {
        let Some((header, payload, tag)) = parts(packet) else {
            return false;
        };
        let nonce = nonce(&material::IV, number).into();
        let tag = (&*tag).into();
        (self.aead)
            .decrypt_inout_detached(&nonce, header, InOutBuf::from(payload), tag)
            .is_ok()
    }

    #[inline]
    fn mask(&mut self, sample: &[u8; SAMPLE_LEN]) -> Option<[u8; 5]> {
        self.header.mask(sample)
    }
}

/// Header protection by the ciphers alone; graviola has none of its own.
pub(super) enum HeaderCipher {
    Aes128(aes::Aes128),
    Aes256(aes::Aes256),
    ChaCha20([u8; 32]),
}

impl HeaderCipher {
    pub(super) fn expand(suite: Suite) -> Option<Self> {
        let key = material::header_key(suite);
        Some(match suite {
            Suite::Aes128Gcm => Self::Aes128(aes::Aes128::new_from_slice(key).ok()?),
            Suite::Aes256Gcm => Self::Aes256(aes::Aes256::new_from_slice(key).ok()?),
            Suite::ChaCha20Poly1305 => Self::ChaCha20(key.try_into().ok()?),
        })
    }

    #[inline]
    pub(super) fn mask(&self, sample: &[u8; SAMPLE_LEN]) -> Option<[u8; 5]> {
        let mut block = (*sample).into();
        match self {
            Self::Aes128(aes) => aes.encrypt_block(&mut block),
            Self::Aes256(aes) => aes.encrypt_block(&mut block),
            Self::ChaCha20(key) => return chacha20_mask(key, sample),
        }
        block.first_chunk().copied()
    }
}

/// RFC 9001 §5.4.4: the sample is a block counter of 4 bytes and a nonce.
fn chacha20_mask(key: &[u8; 32], sample: &[u8; SAMPLE_LEN]) -> Option<[u8; 5]> {
    const BLOCK_LEN: u64 = 64;
    let (counter, nonce) = sample.split_first_chunk::<4>()?;
    let nonce = nonce.first_chunk::<12>()?;
    let mut cipher = ChaCha20::new(key.into(), nonce.into());
    (cipher.try_seek(u64::from(u32::from_le_bytes(*counter)) * BLOCK_LEN)).ok()?;
    let mut mask = [0; 5];
    cipher.try_apply_keystream(&mut mask).ok()?;
    Some(mask)
}
