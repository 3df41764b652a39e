//! Address-validation tokens (RFC 9000 §8.1.1 to §8.1.4): everything a server remembers about a
//! client that it has sent a Retry, or whose address it may recognise later, is held by the client.
//!
//! ```text
//!  kind ‖ salt ‖ sealed(time ‖ version ‖ Retry: original destination) ‖ tag
//!    associated data: kind, the client's IP address; Retry: its port, the Retry's source id
//! ```
//! The kind is in the clear, so that a Retry token can be distinguished from the other kind even if
//! it does not open (RFC 9000 §8.1.2). Each token is sealed with its own key, HMAC-SHA-256 of its
//! 16 random bytes: any number of endpoints may share the secret without tracking nonces.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use aes_gcm::aead::inout::InOutBuf;
use aes_gcm::{AeadInOut, Aes256Gcm, KeyInit as _};
use hmac::{Hmac, Mac};
use rand::RngCore;
use sha2::Sha256;
use squall_wire::{ConnectionId, Reader};

use crate::config::EndpointConfig;
use crate::time::Time;
use crate::token_filter::SKEW;

/// First byte of a Retry token.
const RETRY: u8 = 0xa7;
/// First byte of a token from a NEW_TOKEN frame.
const NEW_TOKEN: u8 = 0x3c;
const SALT: usize = 16;
const TAG: usize = 16;
/// Time in milliseconds, version.
const FIXED: usize = 8 + 4;
/// Bytes of the longest token.
pub(crate) const LONGEST: usize = 1 + SALT + FIXED + ConnectionId::MAX_LEN + TAG;
/// The secret of a server's tokens, and their lifetimes.
#[derive(Clone)]
pub(crate) struct TokenKey {
    /// HMAC with the secret, whose holder can make and accept tokens. The secret is hashed only
    /// once.
    mac: Hmac<Sha256>,
    /// Lifetime of a Retry token.
    retry_lifetime: Duration,
    /// Lifetime of a token for a later connection.
    lifetime: Duration,
    /// Unix time at `Time::ZERO`.
    unix_time_at_zero: Duration,
}

/// A valid NEW_TOKEN token, spent or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NewToken {
    /// Random bytes unique to this token.
    pub(crate) id: [u8; SALT],
    /// Time since the Unix epoch.
    pub(crate) issued: Duration,
}

/// A server's verdict on the token of an Initial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// There is none, or it is neither a Retry token nor valid: the address is not validated (RFC
    /// 9000 §8.1.3).
    Nothing,
    /// A valid NEW_TOKEN token. The endpoint checks whether it is spent.
    Address(NewToken),
    /// A valid Retry token, with the destination id of the client's very first packet.
    Retry(ConnectionId),
    /// An invalid Retry token: INVALID_TOKEN (RFC 9000 §8.1.2).
    Invalid,
}

impl Verdict {
    /// Whether the token shows that the address is the client's own.
    pub(crate) const fn validates(&self) -> bool {
        matches!(self, Self::Address(_) | Self::Retry(_))
    }
}

/// What a token is bound to.
struct Binding {
    bytes: [u8; 1 + 16 + 2 + ConnectionId::MAX_LEN],
    len: usize,
}

impl Binding {
    fn new(kind: u8, remote: SocketAddr, retry_scid: &ConnectionId) -> Self {
        let mut bytes = [0; 1 + 16 + 2 + ConnectionId::MAX_LEN];
        bytes[0] = kind;
        // A dual-stack socket shows IPv4 addresses as IPv6 ones.
        let ip = match remote.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        bytes[1..17].copy_from_slice(&ip.octets());
        let mut len = 17;
        if kind == RETRY {
            // RFC 9000 §8.1.4: a Retry token is used at once, and so from the same port.
            bytes[17..19].copy_from_slice(&remote.port().to_be_bytes());
            let id = retry_scid.as_slice();
            bytes[19..19 + id.len()].copy_from_slice(id);
            len = 19 + id.len();
        }
        Self { bytes, len }
    }

    fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl TokenKey {
    /// The secret and the times of `config`.
    pub(crate) fn new(config: &EndpointConfig) -> Self {
        Self {
            mac: <Hmac<Sha256> as hmac::KeyInit>::new_from_slice(&config.token_key)
                .expect("HMAC takes keys of any length"),
            retry_lifetime: config.retry_token_lifetime,
            lifetime: config.new_token_lifetime,
            unix_time_at_zero: config.unix_time_at_zero,
        }
    }

    /// A token for a Retry packet from `retry_scid` to a client whose first packet went to
    /// `original_dcid`.
    pub(crate) fn retry(
        &self,
        rng: &mut impl RngCore,
        now: Time,
        remote: SocketAddr,
        version: u32,
        original_dcid: &ConnectionId,
        retry_scid: &ConnectionId,
    ) -> Vec<u8> {
        let binding = Binding::new(RETRY, remote, retry_scid);
        self.seal(
            RETRY,
            rng,
            self.unix(now),
            version,
            original_dcid.as_slice(),
            &binding,
        )
    }

    /// A token for a later connection of a client at `remote`, whatever its port, that starts with
    /// `version`.
    pub(crate) fn new_token(
        &self,
        rng: &mut impl RngCore,
        now: Time,
        remote: SocketAddr,
        version: u32,
    ) -> Vec<u8> {
        let binding = Binding::new(NEW_TOKEN, remote, &ConnectionId::EMPTY);
        self.seal(NEW_TOKEN, rng, self.unix(now), version, &[], &binding)
    }

    /// Checks the token of an Initial to `dcid`.
    pub(crate) fn open(
        &self,
        token: &[u8],
        now: Time,
        remote: SocketAddr,
        version: u32,
        dcid: &ConnectionId,
    ) -> Verdict {
        let now = self.unix(now);
        match token.first() {
            Some(&RETRY) => {
                let binding = Binding::new(RETRY, remote, dcid);
                let original = self.unseal(token, now, self.retry_lifetime, version, &binding);
                original.map_or(Verdict::Invalid, |(original, _)| Verdict::Retry(original))
            }
            Some(&NEW_TOKEN) => {
                let binding = Binding::new(NEW_TOKEN, remote, &ConnectionId::EMPTY);
                match self.unseal(token, now, self.lifetime, version, &binding) {
                    Some((_, new_token)) => Verdict::Address(new_token),
                    None => Verdict::Nothing,
                }
            }
            _ => Verdict::Nothing,
        }
    }

    fn unix(&self, now: Time) -> Duration {
        self.unix_time_at_zero + (now - Time::ZERO)
    }

    fn cipher(&self, salt: &[u8]) -> Aes256Gcm {
        let mac = self.mac.clone().chain_update(b"squall token");
        let key: [u8; 32] = mac.chain_update(salt).finalize().into_bytes().into();
        Aes256Gcm::new((&key).into())
    }

    fn seal(
        &self,
        kind: u8,
        rng: &mut impl RngCore,
        now: Duration,
        version: u32,
        original_dcid: &[u8],
        binding: &Binding,
    ) -> Vec<u8> {
        let mut token = Vec::with_capacity(LONGEST);
        token.push(kind);
        token.resize(1 + SALT, 0);
        rng.fill_bytes(&mut token[1..]);
        let cipher = self.cipher(&token[1..]);
        token.extend_from_slice(&millis(now).to_be_bytes());
        token.extend_from_slice(&version.to_be_bytes());
        token.extend_from_slice(original_dcid);
        let sealed = InOutBuf::from(&mut token[1 + SALT..]);
        let tag = cipher
            .encrypt_inout_detached((&[0; 12]).into(), binding.as_slice(), sealed)
            .expect("a token is shorter than an AEAD's limit");
        token.extend_from_slice(&tag);
        token
    }

    /// The contents of a token that is authentic, of this version and young enough: the original
    /// destination, if it is a Retry token, and the token's identity.
    fn unseal(
        &self,
        token: &[u8],
        now: Duration,
        lifetime: Duration,
        version: u32,
        binding: &Binding,
    ) -> Option<(ConnectionId, NewToken)> {
        let token = token.get(1..).filter(|rest| rest.len() < LONGEST)?;
        let (salt, sealed) = token.split_first_chunk::<SALT>()?;
        let (sealed, tag) = sealed.split_last_chunk::<TAG>()?;
        let mut content = [0; FIXED + ConnectionId::MAX_LEN];
        let content = content.get_mut(..sealed.len())?;
        content.copy_from_slice(sealed);
        let opened = InOutBuf::from(&mut *content);
        self.cipher(salt)
            .decrypt_inout_detached((&[0; 12]).into(), binding.as_slice(), opened, tag.into())
            .ok()?;
        let mut r = Reader::new(content);
        let issued = Duration::from_millis(r.u64().ok()?);
        // RFC 9369 §5: a token is valid only for the version in which it was issued.
        let fits = r.u32().ok()? == version && issued <= now + SKEW;
        let young = now.saturating_sub(issued) <= lifetime;
        let original = ConnectionId::new(r.rest()).filter(|_| fits && young)?;
        Some((original, NewToken { id: *salt, issued }))
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    const NOW: Time = Time::from_nanos(100_000_000_000);

    fn key(byte: u8) -> TokenKey {
        let mut config = EndpointConfig::new([0; 32]);
        config.token_key = [byte; 32];
        config.retry_token_lifetime = Duration::from_secs(15);
        config.new_token_lifetime = Duration::from_secs(1000);
        config.unix_time_at_zero = Duration::from_secs(1_700_000_000);
        TokenKey::new(&config)
    }

    fn id(byte: u8) -> ConnectionId {
        ConnectionId::new(&[byte; 8]).unwrap()
    }

    fn address(last: u8, port: u16) -> SocketAddr {
        ([192, 0, 2, last], port).into()
    }

    // test: RFC 9000 §8.1.2, §8.1.4
    #[test]
    fn a_retry_token_is_valid_for_one_address_port_id_and_version_and_expires() {
        let (key, rng) = (key(1), &mut StdRng::from_seed([0; 32]));
        let token = key.retry(rng, NOW, address(1, 5), 1, &id(8), &id(9));
        let open = |now, remote, version, dcid: u8| {
            super::tests::key(1).open(&token, now, remote, version, &id(dcid))
        };
        assert_eq!(open(NOW, address(1, 5), 1, 9), Verdict::Retry(id(8)));
        let mapped = "[::ffff:192.0.2.1]:5".parse().unwrap();
        assert_eq!(open(NOW, mapped, 1, 9), Verdict::Retry(id(8)));
        let second = Duration::from_secs(1);
        assert_eq!(
            open(NOW + 15 * second, address(1, 5), 1, 9),
            Verdict::Retry(id(8))
        );
        // The clock of the host that made it is more than a minute fast.
        let before = Time::from_nanos(38_000_000_000);
        for bad in [
            open(NOW + 16 * second, address(1, 5), 1, 9),
            open(before, address(1, 5), 1, 9),
            open(NOW, address(1, 6), 1, 9),
            open(NOW, address(2, 5), 1, 9),
            open(NOW, address(1, 5), 2, 9),
            open(NOW, address(1, 5), 1, 8),
            super::tests::key(2).open(&token, NOW, address(1, 5), 1, &id(9)),
        ] {
            assert_eq!(bad, Verdict::Invalid);
        }
        for at in 1..token.len() {
            let mut damaged = token.clone();
            damaged[at] ^= 1;
            let verdict = key.open(&damaged, NOW, address(1, 5), 1, &id(9));
            assert_eq!(verdict, Verdict::Invalid, "byte {at}");
        }
        for len in 1..token.len() {
            let verdict = key.open(&token[..len], NOW, address(1, 5), 1, &id(9));
            assert_eq!(verdict, Verdict::Invalid, "{len} bytes");
        }
    }

    // test: RFC 9000 §8.1.3: an invalid token is treated as if there were none.
    #[test]
    fn a_token_for_later_connections_is_valid_for_one_address_and_version() {
        let (key, rng) = (key(1), &mut StdRng::from_seed([0; 32]));
        let token = key.new_token(rng, NOW, address(1, 5), 1);
        let open =
            |now, remote, version| super::tests::key(1).open(&token, now, remote, version, &id(7));
        let Verdict::Address(good) = open(NOW, address(1, 5), 1) else {
            panic!("the token is valid");
        };
        assert_eq!(good.issued, Duration::from_secs(1_700_000_100));
        assert_eq!(open(NOW, address(1, 77), 1), Verdict::Address(good));
        for bad in [
            open(NOW + Duration::from_secs(1001), address(1, 5), 1),
            open(NOW, address(2, 5), 1),
            open(NOW, address(1, 5), 3),
            key.open(&[], NOW, address(1, 5), 1, &id(7)),
            key.open(&[0; 50], NOW, address(1, 5), 1, &id(7)),
            key.open(&token[..20], NOW, address(1, 5), 1, &id(7)),
        ] {
            assert_eq!(bad, Verdict::Nothing);
        }
        let mut other = token.clone();
        other[0] = RETRY;
        assert_eq!(
            key.open(&other, NOW, address(1, 5), 1, &ConnectionId::EMPTY),
            Verdict::Invalid,
            "a token of one kind is not accepted as the other"
        );
        let again = key.new_token(rng, NOW, address(1, 5), 1);
        assert_ne!(
            token, again,
            "two tokens for the same client cannot be linked"
        );
    }

    /// RFC 9000 §8.1.1: a server that holds no state must not be made to answer with more than it
    /// received.
    #[test]
    fn tokens_are_short() {
        let long = ConnectionId::new(&[1; ConnectionId::MAX_LEN]).unwrap();
        let rng = &mut StdRng::from_seed([0; 32]);
        let token = key(1).retry(rng, NOW, address(1, 5), 1, &long, &long);
        assert_eq!(token.len(), LONGEST);
        let verdict = key(1).open(&token, NOW, address(1, 5), 1, &long);
        assert_eq!(verdict, Verdict::Retry(long));
    }
}
