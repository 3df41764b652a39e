//! graviola: an AEAD in place. It offers no cipher alone, so its header protection is RustCrypto's.

use std::panic;

use graviola::aead::{AesGcm, ChaCha20Poly1305};
use squall_peers_table::nonce;
use squall_protect::SAMPLE_LEN;

use super::super::args::{Name, Suite};
use super::super::material;
use super::rustcrypto::HeaderCipher;
use super::{Contender, Entrant, OneByOne, Peer, parts};

/// Fails if this CPU lacks something that graviola needs.
pub(crate) fn entrant() -> Result<Entrant, String> {
    // graviola panics in that case; this program reports the panic's reason, once.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let tried = panic::catch_unwind(|| drop(AesGcm::new(material::key(Suite::Aes128Gcm))));
    panic::set_hook(hook);
    if let Err(reason) = tried {
        let text = (reason.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .or_else(|| reason.downcast_ref::<String>().cloned());
        return Err(text.unwrap_or_else(|| "it does not run on this CPU".to_owned()));
    }
    Ok(Entrant {
        name: Name::Graviola,
        version: format!(
            "{}; header protection by RustCrypto's {} and {}, since it offers no cipher alone",
            super::package("graviola"),
            super::package("aes"),
            super::package("chacha20")
        ),
        kernel: super::UNTOLD.to_owned(),
        expand: Box::new(expand),
    })
}

fn expand(suite: Suite) -> Option<Box<dyn Contender>> {
    let (key, header) = (material::key(suite), HeaderCipher::expand(suite)?);
    Some(match suite {
        Suite::Aes128Gcm | Suite::Aes256Gcm => {
            let aead = AesGcm::new(key);
            Box::new(OneByOne(Graviola { aead, header }))
        }
        Suite::ChaCha20Poly1305 => {
            let aead = ChaCha20Poly1305::new(key.try_into().ok()?);
            Box::new(OneByOne(Graviola { aead, header }))
        }
    })
}

struct Graviola<A> {
    aead: A,
    header: HeaderCipher,
}

/// The two types have the same two functions and no trait.
macro_rules! peer {
    ($aead:ty) => {
        impl Peer for Graviola<$aead> {
            #[inline]
            fn seal(&mut self, packet: &mut [u8], number: u64) -> bool {
                let Some((header, payload, tag)) = parts(packet) else {
                    return false;
                };
                (self.aead).encrypt(&nonce(&material::IV, number), header, payload, tag);
                true
            }

            #[inline]
            fn open(&mut self, packet: &mut [u8], number: u64) -> bool {
                let Some((header, payload, tag)) = parts(packet) else {
                    return false;
                };
                (self.aead)
                    .decrypt(&nonce(&material::IV, number), header, payload, tag)
                    .is_ok()
            }

            #[inline]
            fn mask(&mut self, sample: &[u8; SAMPLE_LEN]) -> Option<[u8; 5]> {
                self.header.mask(sample)
            }
        }
    };
}

peer!(AesGcm);
peer!(ChaCha20Poly1305);
