//! HKDF for the TLS key schedule (RFC 5869, RFC 8446 §7.1), with the key's part of every hash
//! computed once.
//!
//! A handshake expands many labels, several from each secret. HMAC hashes a block of key before the
//! message and one before the inner hash (RFC 2104 §4). Here the states after these two blocks are
//! kept with the secret, so a label costs two blocks instead of four, and no context on the heap.

use std::marker::PhantomData;

use hkdf::hmac::digest::Output;
use hkdf::{GenericHkdf, HmacImpl, hmac::Hmac};
use rustls::crypto::hmac::Tag;
use rustls::crypto::tls13::{Hkdf, HkdfExpander, OkmBlock, OutputLengthError};
use sha2::{Sha256, Sha384};
use zeroize::Zeroize;

/// HKDF of the suites with SHA-256 (RFC 8446 §B.4).
pub(crate) static HKDF_SHA256: &dyn Hkdf = &Keyed::<Hmac<Sha256>>(PhantomData);
/// HKDF of the suite with SHA-384.
pub(crate) static HKDF_SHA384: &dyn Hkdf = &Keyed::<Hmac<Sha384>>(PhantomData);

/// HKDF over one HMAC.
struct Keyed<M>(PhantomData<fn() -> M>);

/// An HMAC that rustls may keep and send between threads.
trait Mac: HmacImpl + Send + Sync + 'static {}

impl<M: HmacImpl + Send + Sync + 'static> Mac for M {}

impl<M: Mac> Hkdf for Keyed<M> {
    fn extract_from_zero_ikm(&self, salt: Option<&[u8]>) -> Box<dyn HkdfExpander> {
        self.extract_from_secret(salt, &Output::<M>::default())
    }

    fn extract_from_secret(&self, salt: Option<&[u8]>, secret: &[u8]) -> Box<dyn HkdfExpander> {
        let (mut prk, expander) = GenericHkdf::<M>::extract(salt, secret);
        prk.zeroize();
        Box::new(Expander(expander))
    }

    fn expander_for_okm(&self, okm: &OkmBlock) -> Box<dyn HkdfExpander> {
        let expander = GenericHkdf::<M>::from_prk(okm.as_ref());
        Box::new(Expander(expander.expect("a secret is as long as the hash")))
    }

    fn hmac_sign(&self, key: &OkmBlock, message: &[u8]) -> Tag {
        let mut mac = M::new_from_slice(key.as_ref());
        mac.update(message);
        Tag::new(&mac.finalize())
    }
}

/// A secret, as the hash states after its key blocks.
struct Expander<M: Mac>(GenericHkdf<M>);

impl<M: Mac> HkdfExpander for Expander<M> {
    fn expand_slice(&self, info: &[&[u8]], output: &mut [u8]) -> Result<(), OutputLengthError> {
        let expanded = self.0.expand_multi_info(info, output);
        expanded.map_err(|_| OutputLengthError)
    }

    fn expand_block(&self, info: &[&[u8]]) -> OkmBlock {
        let mut block = Output::<M>::default();
        let expanded = self.0.expand_multi_info(info, &mut block);
        expanded.expect("one hash is shorter than 255 of them");
        let okm = OkmBlock::new(&block);
        block.zeroize();
        okm
    }

    fn hash_len(&self) -> usize {
        M::output_size()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use rustls::crypto::aws_lc_rs::cipher_suite::{
        TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384,
    };

    use super::*;

    pub(crate) fn hex(text: &str) -> Vec<u8> {
        let digits = |i| u8::from_str_radix(&text[i..i + 2], 16).unwrap();
        (0..text.len()).step_by(2).map(digits).collect()
    }

    // test: RFC 5869 §A.1 to §A.3: with info, of more than a block, and with neither salt nor info.
    #[test]
    fn the_vectors_of_rfc_5869_are_reproduced() {
        let range = |from: u8, to: u8| (from..=to).collect::<Vec<u8>>();
        let cases = [
            (
                vec![0x0b; 22],
                Some(range(0, 0x0c)),
                range(0xf0, 0xf9),
                "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
            ),
            (
                range(0, 0x4f),
                Some(range(0x60, 0xaf)),
                range(0xb0, 0xff),
                "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c59045a99cac7827271cb\
                 41c65e590e09da3275600c2f09b8367793a9aca3db71cc30c58179ec3e87c14c01d5c1f3434f1d87",
            ),
            (
                vec![0x0b; 22],
                None,
                vec![],
                "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
            ),
        ];
        for (secret, salt, info, expected) in cases {
            let expected = hex(expected);
            let mut okm = vec![0; expected.len()];
            let expander = HKDF_SHA256.extract_from_secret(salt.as_deref(), &secret);
            // However the info is split into pieces.
            let (front, back) = info.split_at(info.len() / 3);
            expander.expand_slice(&[front, back], &mut okm).unwrap();
            assert_eq!(okm, expected);
        }
    }

    // test: every entry point gives the same result as aws-lc-rs.
    #[test]
    fn hkdf_agrees_with_the_provider() {
        let theirs = [TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384];
        for (ours, theirs) in [HKDF_SHA256, HKDF_SHA384].into_iter().zip(theirs) {
            let theirs = theirs.tls13().unwrap().hkdf_provider;
            let len = ours.extract_from_zero_ikm(None).hash_len();
            let okm = OkmBlock::new(&(0..len as u8).collect::<Vec<_>>());
            for salt in [None, Some(&b"salt"[..]), Some(&[7; 200][..])] {
                let expanders = [ours, theirs].map(|hkdf| {
                    [
                        hkdf.extract_from_zero_ikm(salt),
                        hkdf.extract_from_secret(salt, &[3; 90]),
                        hkdf.expander_for_okm(&okm),
                    ]
                });
                for (ours, theirs) in expanders[0].iter().zip(&expanders[1]) {
                    assert_eq!(ours.hash_len(), theirs.hash_len());
                    let info = [&b"some"[..], b"", b"info"];
                    let blocks = [ours, theirs].map(|e| e.expand_block(&info));
                    assert_eq!(blocks[0].as_ref(), blocks[1].as_ref());
                    for len in [1, 12, 31, 32, 33, 48, 49, 200] {
                        let (mut a, mut b) = (vec![0; len], vec![0; len]);
                        ours.expand_slice(&info, &mut a).unwrap();
                        theirs.expand_slice(&info, &mut b).unwrap();
                        assert_eq!(a, b);
                    }
                    let mut too_long = vec![0; 255 * ours.hash_len() + 1];
                    assert!(ours.expand_slice(&info, &mut too_long).is_err());
                }
            }
            for message in [&b""[..], b"message", &[9; 300]] {
                let tags = [ours, theirs].map(|hkdf| hkdf.hmac_sign(&okm, message));
                assert_eq!(tags[0].as_ref(), tags[1].as_ref());
            }
        }
    }
}
