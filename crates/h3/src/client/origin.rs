//! Origins of requests, and their alternative services (RFC 7838).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use http::Uri;
use http::header::HeaderValue;
use http::uri::Authority;

use crate::error::Error;

/// The port of `https`.
const HTTPS: u16 = 443;

/// How long an alternative is used if it does not say (RFC 7838 §3.1).
const MAX_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// The most alternatives that are kept.
const MAX_ALTERNATIVES: usize = 1000;

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Origin {
    /// A DNS name in lower case, or an IP address without brackets.
    pub(super) host: String,
    pub(super) port: u16,
}

impl Origin {
    /// The origin of a request's URI.
    ///
    /// # Errors
    /// The URI has none, or a wrong port, or a scheme other than `https`.
    pub(super) fn of(uri: &Uri) -> Result<Self, Error> {
        if uri.scheme_str().is_some_and(|scheme| scheme != "https") {
            return Err(Error::InvalidRequest("HTTP/3 is for https only"));
        }
        let authority = uri.authority();
        let authority = authority.ok_or(Error::InvalidRequest("the URI has no host"))?;
        let host = authority.host();
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        Ok(Self {
            host: host.to_ascii_lowercase(),
            port: port(authority)?,
        })
    }
}

/// The port of an authority; that of `https` if it has none, or an empty one (RFC 3986 §3.2.3).
///
/// # Errors
/// The host is followed by something other than a port, which `Authority::port_u16` ignores.
fn port(authority: &Authority) -> Result<u16, Error> {
    let host_and_port = authority.as_str().rsplit('@').next().unwrap_or_default();
    let rest = host_and_port.strip_prefix(authority.host());
    let text = match rest.unwrap_or_default() {
        "" | ":" => return Ok(HTTPS),
        rest => rest.strip_prefix(':').unwrap_or(rest),
    };
    // `u16` takes a sign, too.
    let digits = Some(text).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let port = digits.and_then(|digits| digits.parse().ok());
    port.filter(|port| *port > 0).ok_or(Error::InvalidRequest(
        "the URI's port is not from 1 to 65535",
    ))
}

/// Where an origin can also be reached (RFC 7838).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Alternative {
    /// `None`: the origin's own host.
    pub(super) host: Option<String>,
    pub(super) port: u16,
    pub(super) until: Instant,
}

/// What an `Alt-Svc` field says about HTTP/3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AltSvc {
    /// Alternatives learned earlier are no longer valid.
    Clear,
    Use(Alternative),
}

/// The alternatives to origins. They outlive connections, for the next one, so their number is
/// bounded.
#[derive(Default)]
pub(super) struct Alternatives(HashMap<Origin, Alternative>);

impl Alternatives {
    /// The alternative to an origin, if it is still valid.
    pub(super) fn get(&self, origin: &Origin, now: Instant) -> Option<Alternative> {
        let alternative = self.0.get(origin)?;
        (alternative.until > now).then(|| alternative.clone())
    }

    /// Keeps an alternative, if need be in place of the one that expires first.
    pub(super) fn insert(&mut self, origin: &Origin, alternative: Alternative, now: Instant) {
        if self.0.len() >= MAX_ALTERNATIVES && !self.0.contains_key(origin) {
            self.0.retain(|_, one| one.until > now);
            let first = self.0.iter().min_by_key(|(_, one)| one.until);
            if let Some(first) = first.map(|(origin, _)| origin.clone())
                && self.0.len() >= MAX_ALTERNATIVES
            {
                self.0.remove(&first);
            }
        }
        self.0.insert(origin.clone(), alternative);
    }

    pub(super) fn remove(&mut self, origin: &Origin) {
        self.0.remove(origin);
    }
}

/// Reads an `Alt-Svc` field (RFC 7838 §3). The first of several alternatives for HTTP/3 counts;
/// unreadable ones are ignored.
pub(super) fn alt_svc(value: &HeaderValue, now: Instant) -> Option<AltSvc> {
    let text = value.to_str().ok()?;
    if text.trim() == "clear" {
        return Some(AltSvc::Clear);
    }
    text.split(',').find_map(|member| {
        let mut parts = member.split(';');
        let (protocol, authority) = parts.next()?.trim().split_once('=')?;
        if protocol != "h3" {
            return None;
        }
        let authority = authority.strip_prefix('"')?.strip_suffix('"')?;
        let (host, port) = authority.rsplit_once(':')?;
        let max_age = parts.find_map(|part| part.trim().strip_prefix("ma=")?.parse().ok());
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        Some(AltSvc::Use(Alternative {
            host: (!host.is_empty()).then(|| host.to_ascii_lowercase()),
            port: port.parse().ok().filter(|port| *port > 0)?,
            until: now
                + max_age.map_or(MAX_AGE, |seconds: u32| Duration::from_secs(seconds.into())),
        }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_a_host_and_a_port() {
        for (uri, host, port) in [
            ("https://Example.org/a", "example.org", 443),
            ("https://[::1]:8443/", "::1", 8443),
            ("https://10.0.0.1:1/", "10.0.0.1", 1),
            ("https://a:/", "a", 443),
            ("https://[::1]/", "::1", 443),
            ("https://user:3@a/", "a", 443),
            ("https://user:3@a:65535/", "a", 65535),
        ] {
            let origin = Origin::of(&uri.parse().unwrap()).unwrap();
            assert_eq!((&*origin.host, origin.port), (host, port));
        }
        for uri in [
            "/path",
            "http://example.org/",
            "ws://example.org/",
            "https://a:0/",
            "https://a:65536/",
            "https://a:b/",
            "https://a:+1/",
            "https://[::1]:x/",
        ] {
            assert!(Origin::of(&uri.parse().unwrap()).is_err(), "{uri}");
        }
    }

    #[test]
    fn alternatives_expire_and_are_bounded() {
        let now = Instant::now();
        let origin = |port| Origin {
            host: "one.test".to_owned(),
            port,
        };
        let until = |seconds| Alternative {
            host: None,
            port: 1,
            until: now + Duration::from_secs(seconds),
        };
        let mut alternatives = Alternatives::default();
        // Expired, and never returned.
        alternatives.insert(&origin(1), until(0), now);
        assert_eq!(alternatives.get(&origin(1), now), None);
        let most = MAX_ALTERNATIVES as u16;
        for port in 2..most + 2 {
            alternatives.insert(&origin(port), until(port.into()), now);
        }
        assert_eq!(alternatives.0.len(), MAX_ALTERNATIVES);
        // The one that expires first makes room.
        alternatives.insert(&origin(1), until(5000), now);
        assert_eq!(alternatives.0.len(), MAX_ALTERNATIVES);
        assert_eq!(alternatives.get(&origin(2), now), None);
        assert_eq!(alternatives.get(&origin(1), now), Some(until(5000)));
        // Another one for the same origin takes its place.
        alternatives.insert(&origin(3), until(6000), now);
        assert_eq!(alternatives.0.len(), MAX_ALTERNATIVES);
        alternatives.remove(&origin(3));
        assert_eq!(alternatives.get(&origin(3), now), None);
    }

    // test: RFC 7838 §3
    #[test]
    fn alt_svc_is_parsed() {
        let now = Instant::now();
        let read = |text: &'static str| alt_svc(&HeaderValue::from_static(text), now);
        let at = |host: Option<&str>, port, seconds| {
            Some(AltSvc::Use(Alternative {
                host: host.map(str::to_owned),
                port,
                until: now + Duration::from_secs(seconds),
            }))
        };
        for (text, expected) in [
            ("clear", Some(AltSvc::Clear)),
            (r#"h3=":8443""#, at(None, 8443, 86_400)),
            (r#"h2=":1", h3=":2"; ma=60; persist=1"#, at(None, 2, 60)),
            (
                r#"h3="Other.Example:3";ma=0"#,
                at(Some("other.example"), 3, 0),
            ),
            (r#"h3="[::1]:4""#, at(Some("::1"), 4, 86_400)),
            (r#"h3-29=":5""#, None),
            (r#"h3=":0""#, None),
            (r#"h3=":99999""#, None),
            ("h3=:6", None),
            ("", None),
        ] {
            assert_eq!(read(text), expected, "{text}");
        }
    }
}
