//! squall's keys behind the traits of rustls.

use rustls::Error;
use rustls::crypto::cipher::{AeadKey, Iv};
use rustls::quic::{self, Tag};
use squall_protect::{
    HeaderKeyMaterial, KeyMaterial, MASK_LEN, Outcome, PacketMemory, SAMPLE_LEN, ScatteredPacket,
    Suite, TAG_LEN,
};

/// The QUIC algorithm of a suite.
pub(crate) struct Algorithm(pub(crate) Suite);

/// An AEAD key of one direction.
struct PacketKey(squall_protect::PacketKey);

/// A header-protection key of one direction.
struct HeaderKey(squall_protect::HeaderKey);

/// A full packet ...
const FULL_LEN: usize = 1000;
/// ... from this number on makes the key build its larger tables: packets come one at a time, so
/// squall cannot tell from a call that a key is busy. Keys of short connections stay small.
const BUSY_NUMBER: u64 = 64;

impl PacketKey {
    fn grow_if_busy(&self, packet_number: u64, payload: &[u8]) {
        if packet_number >= BUSY_NUMBER && payload.len() >= FULL_LEN {
            self.0.grow();
        }
    }
}

// `AeadKey` wipes itself, and so do key material and keys of squall. rustls keeps the `Iv`.
impl quic::Algorithm for Algorithm {
    fn packet_key(&self, key: AeadKey, iv: Iv) -> Box<dyn quic::PacketKey> {
        let iv = iv.as_ref().first_chunk().expect("an IV has 12 bytes");
        let material = KeyMaterial::new(self.0, key.as_ref(), iv);
        let material = material.expect("rustls asks for the length of the key");
        Box::new(PacketKey(squall_protect::PacketKey::new(&material)))
    }

    fn header_protection_key(&self, key: AeadKey) -> Box<dyn quic::HeaderProtectionKey> {
        let material = HeaderKeyMaterial::new(self.0, key.as_ref());
        let material = material.expect("rustls asks for the length of the key");
        Box::new(HeaderKey(squall_protect::HeaderKey::new(&material)))
    }

    fn aead_key_len(&self) -> usize {
        self.0.key_len()
    }
}

impl quic::PacketKey for PacketKey {
    fn encrypt_in_place(
        &self,
        packet_number: u64,
        header: &[u8],
        payload: &mut [u8],
    ) -> Result<Tag, Error> {
        self.encrypt_in_place_for_path(0, packet_number, header, payload)
    }

    fn encrypt_in_place_for_path(
        &self,
        path_id: u32,
        packet_number: u64,
        header: &[u8],
        payload: &mut [u8],
    ) -> Result<Tag, Error> {
        self.grow_if_busy(packet_number, payload);
        let mut tag = [0; TAG_LEN];
        let memory = PacketMemory::Parts {
            header,
            payload,
            tag: &mut tag,
        };
        let mut packet = ScatteredPacket::new(memory, packet_number);
        packet.path_id = path_id;
        self.0.seal_scattered(std::slice::from_mut(&mut packet));
        match packet.outcome {
            Outcome::Open => Ok(Tag::from(&tag[..])),
            _ => Err(Error::EncryptError),
        }
    }

    fn decrypt_in_place<'a>(
        &self,
        packet_number: u64,
        header: &[u8],
        payload: &'a mut [u8],
    ) -> Result<&'a [u8], Error> {
        self.decrypt_in_place_for_path(0, packet_number, header, payload)
    }

    fn decrypt_in_place_for_path<'a>(
        &self,
        path_id: u32,
        packet_number: u64,
        header: &[u8],
        payload: &'a mut [u8],
    ) -> Result<&'a [u8], Error> {
        let (payload, tag) = payload.split_last_chunk_mut().ok_or(Error::DecryptError)?;
        self.grow_if_busy(packet_number, payload);
        let memory = PacketMemory::Parts {
            header,
            payload: &mut *payload,
            tag,
        };
        let mut packet = ScatteredPacket::new(memory, packet_number);
        packet.path_id = path_id;
        self.0.open_scattered(std::slice::from_mut(&mut packet));
        match packet.outcome {
            Outcome::Open => Ok(payload),
            _ => Err(Error::DecryptError),
        }
    }

    fn tag_len(&self) -> usize {
        TAG_LEN
    }

    fn confidentiality_limit(&self) -> u64 {
        self.0.suite().confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.0.suite().integrity_limit()
    }
}

/// Which form the first byte of a header has (RFC 9001 §5.4.1).
#[derive(Copy, Clone)]
enum First {
    /// About to be masked.
    Bare,
    /// As received.
    Masked,
}

impl HeaderKey {
    /// Applies or removes header protection (RFC 9001 §5.4.1).
    fn toggle(
        &self,
        sample: &[u8],
        first: &mut u8,
        packet_number: &mut [u8],
        form: First,
    ) -> Result<(), Error> {
        let sample = <&[u8; SAMPLE_LEN]>::try_from(sample)
            .map_err(|_| Error::General("the sample must have 16 bytes".into()))?;
        if packet_number.len() >= MASK_LEN {
            return Err(Error::General(
                "the packet number must have at most 4 bytes".into(),
            ));
        }
        let mut masks = [[0; MASK_LEN]];
        self.0.masks(std::slice::from_ref(sample), &mut masks);
        let [[first_mask, number_mask @ ..]] = masks;
        // Four bits of a long header, five of a short one.
        let protected_bits = if *first & 0x80 == 0 { 0x1f } else { 0x0f };
        let toggled = *first ^ first_mask & protected_bits;
        let bare = match form {
            First::Bare => *first,
            First::Masked => toggled,
        };
        *first = toggled;
        // Bytes after a shorter number are payload.
        let number_len = usize::from(bare & 0x03) + 1;
        let number = packet_number.iter_mut().take(number_len);
        number
            .zip(number_mask)
            .for_each(|(byte, mask)| *byte ^= mask);
        Ok(())
    }
}

impl quic::HeaderProtectionKey for HeaderKey {
    fn encrypt_in_place(
        &self,
        sample: &[u8],
        first: &mut u8,
        packet_number: &mut [u8],
    ) -> Result<(), Error> {
        self.toggle(sample, first, packet_number, First::Bare)
    }

    fn decrypt_in_place(
        &self,
        sample: &[u8],
        first: &mut u8,
        packet_number: &mut [u8],
    ) -> Result<(), Error> {
        self.toggle(sample, first, packet_number, First::Masked)
    }

    fn sample_len(&self) -> usize {
        SAMPLE_LEN
    }
}
