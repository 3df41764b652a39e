//! The reference: RustCrypto, one packet at a time. Every other kernel is compared with it.

use aes::cipher::{BlockCipherEncrypt, KeyInit, StreamCipherCore};
use aes_gcm::aead::inout::InOutBuf;
use aes_gcm::{AeadInOut, Aes128Gcm, Aes256Gcm};
use chacha20::variants::Ietf;
use chacha20::{ChaChaCore, KeyIvInit, R20};
use chacha20poly1305::ChaCha20Poly1305;
use zeroize::Zeroize;

use super::job::{Headers, Toggle, toggle_by};
use super::{Fusion, Job};
use crate::material::{HeaderKeyMaterial, KeyMaterial};
use crate::span::{SAMPLE_LEN, TAG_LEN};
use crate::suite::Suite;

/// The expanded key. Boxed: RustCrypto keeps room for its software form, which is several times the
/// size of a kernel's own key.
enum Cipher {
    Aes128Gcm(Box<Aes128Gcm>),
    Aes256Gcm(Box<Aes256Gcm>),
    ChaCha20Poly1305(Box<ChaCha20Poly1305>),
}

pub(crate) struct Aead {
    cipher: Cipher,
    iv: [u8; 12],
}

impl Aead {
    pub(crate) fn new(material: &KeyMaterial) -> Self {
        let key = material.padded_key();
        let (key128, _) = key.split_at(16);
        let cipher = match material.suite() {
            Suite::Aes128Gcm => Cipher::Aes128Gcm(Box::new(Aes128Gcm::new(
                key128.try_into().expect("half of 32 bytes is 16 bytes"),
            ))),
            Suite::Aes256Gcm => Cipher::Aes256Gcm(Box::new(Aes256Gcm::new(key.into()))),
            Suite::ChaCha20Poly1305 => {
                Cipher::ChaCha20Poly1305(Box::new(ChaCha20Poly1305::new(key.into())))
            }
        };
        Self {
            cipher,
            iv: *material.iv(),
        }
    }

    /// The IV with path id and packet number, 32 and 64 bits in network order, over it (RFC 9001
    /// §5.3, draft-ietf-quic-multipath §2.4).
    fn nonce(&self, (path_id, number): (u32, u64)) -> [u8; 12] {
        let mut nonce = self.iv;
        let combined = path_id
            .to_be_bytes()
            .into_iter()
            .chain(number.to_be_bytes());
        for (byte, other) in nonce.iter_mut().zip(combined) {
            *byte ^= other;
        }
        nonce
    }

    /// There is one class of tables.
    pub(super) fn grow_if(&self, _: impl FnOnce() -> bool) {}

    pub(super) fn shrink(&mut self) {}

    pub(super) fn seal(&self, jobs: &mut [Job<'_>]) {
        jobs.iter_mut().for_each(|job| self.seal_one(job));
    }

    /// Masks are made afterwards.
    pub(super) fn seal_fused(&self, _: &mut [Job<'_>], _: &super::Header, _: Fusion) -> bool {
        false
    }

    pub(super) fn open(&self, jobs: &mut [Job<'_>]) -> u32 {
        (jobs.iter_mut().enumerate()).fold(0, |good, (i, job)| {
            let is_right = self.open_one(job);
            job.fill_target();
            good | u32::from(is_right) << i
        })
    }

    /// Masks are made before.
    pub(super) fn open_fused(
        &self,
        _: &mut [Job<'_>],
        _: &super::Header,
        _: Fusion,
    ) -> Option<u32> {
        None
    }

    fn seal_one(&self, job: &mut Job<'_>) {
        job.take_source();
        let nonce = self.nonce(job.path_and_number());
        let (header, payload, tag) = job.parts();
        let payload = InOutBuf::from(payload);
        let sealed = match &self.cipher {
            Cipher::Aes128Gcm(aead) => {
                aead.encrypt_inout_detached((&nonce).into(), header, payload)
            }
            Cipher::Aes256Gcm(aead) => {
                aead.encrypt_inout_detached((&nonce).into(), header, payload)
            }
            Cipher::ChaCha20Poly1305(aead) => {
                aead.encrypt_inout_detached((&nonce).into(), header, payload)
            }
        };
        // This fails only past 2^36 bytes, which a span cannot describe.
        let sealed = sealed.expect("a packet is shorter than an AEAD's limit");
        tag.copy_from_slice(&sealed);
    }

    /// Whether the packet is authentic. RustCrypto compares in constant time, before it decrypts.
    fn open_one(&self, job: &mut Job<'_>) -> bool {
        let nonce = self.nonce(job.path_and_number());
        let (header, payload, tag) = job.parts();
        let payload = InOutBuf::from(payload);
        let tag: &[u8; TAG_LEN] = tag;
        match &self.cipher {
            Cipher::Aes128Gcm(aead) => {
                aead.decrypt_inout_detached((&nonce).into(), header, payload, tag.into())
            }
            Cipher::Aes256Gcm(aead) => {
                aead.decrypt_inout_detached((&nonce).into(), header, payload, tag.into())
            }
            Cipher::ChaCha20Poly1305(aead) => {
                aead.decrypt_inout_detached((&nonce).into(), header, payload, tag.into())
            }
        }
        .is_ok()
    }
}

impl Drop for Aead {
    fn drop(&mut self) {
        self.iv.zeroize();
    }
}

/// The header-protection cipher, expanded.
pub(crate) enum Header {
    Aes128(Box<aes::Aes128Enc>),
    Aes256(Box<aes::Aes256Enc>),
    ChaCha20(Box<ChaChaKey>),
}

pub(crate) struct ChaChaKey([u8; 32]);

impl Drop for ChaChaKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl Header {
    pub(crate) fn new(material: &HeaderKeyMaterial) -> Self {
        let key = material.padded_key();
        let (key128, _) = key.split_at(16);
        match material.suite() {
            Suite::Aes128Gcm => Self::Aes128(Box::new(aes::Aes128Enc::new(
                key128.try_into().expect("half of 32 bytes is 16 bytes"),
            ))),
            Suite::Aes256Gcm => Self::Aes256(Box::new(aes::Aes256Enc::new(key.into()))),
            Suite::ChaCha20Poly1305 => Self::ChaCha20(Box::new(ChaChaKey(*key))),
        }
    }

    pub(super) fn toggle(&self, headers: impl Headers, toggle: Toggle) {
        toggle_by(headers, toggle, |samples| self.masks(samples));
    }

    /// Turns samples into masks, of which five bytes are used.
    fn masks(&self, samples: &mut [[u8; SAMPLE_LEN]]) {
        for block in samples {
            match self {
                // RFC 9001 §5.4.3
                Self::Aes128(aes) => aes.encrypt_block(block.into()),
                Self::Aes256(aes) => aes.encrypt_block(block.into()),
                Self::ChaCha20(key) => *block = chacha20_mask(key, block),
            }
        }
    }
}

/// RFC 9001 §5.4.4: the sample is a block counter, little-endian, and a nonce.
fn chacha20_mask(key: &ChaChaKey, sample: &[u8; SAMPLE_LEN]) -> [u8; SAMPLE_LEN] {
    let [c0, c1, c2, c3, nonce @ ..] = sample;
    let mut core = ChaChaCore::<R20, Ietf>::new((&key.0).into(), nonce.into());
    // The core and not the stream cipher, since the latter refuses the last block of its counter,
    // which a peer can choose.
    core.set_block_pos(u32::from_le_bytes([*c0, *c1, *c2, *c3]));
    let mut block = [[0; 16]; 4];
    core.write_keystream_block(block.as_flattened_mut().try_into().expect("64 bytes"));
    block[0]
}
