//! Ports of URLs.

use http::uri::Authority;

/// The port of an authority; `default` if it has none, or an empty one (RFC 3986 §3.2.3).
///
/// # Errors
/// The host is followed by something other than a port, which `Authority::port_u16` ignores.
pub(crate) fn of(authority: &Authority, default: u16) -> Result<u16, String> {
    let host_and_port = authority.as_str().rsplit('@').next().unwrap_or_default();
    let rest = host_and_port.strip_prefix(authority.host());
    let text = match rest.unwrap_or_default() {
        "" | ":" => return Ok(default),
        rest => rest.strip_prefix(':').unwrap_or(rest),
    };
    // `u16` takes a sign, too.
    let digits = Some(text).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let port = digits.and_then(|digits| digits.parse().ok());
    port.filter(|port| *port > 0)
        .ok_or_else(|| format!("{text:?} is not a port from 1 to 65535"))
}

#[cfg(test)]
mod tests {
    use super::*;

    // test: RFC 3986 §3.2.3
    #[test]
    fn ports_are_from_1_to_65535() {
        let of = |text: &'static str| of(&Authority::from_static(text), 80);
        for (text, port) in [
            ("a", 80),
            ("a:", 80),
            ("a:1", 1),
            ("a:00443", 443),
            ("a:65535", 65535),
            ("[::1]", 80),
            ("[::1]:", 80),
            ("[::1]:2", 2),
            ("user:3@a", 80),
            ("user:3@a:4", 4),
        ] {
            assert_eq!(of(text), Ok(port), "{text}");
        }
        for text in ["a:0", "a:65536", "a:99999", "a:b", "a:+1", "[::1]:x"] {
            assert!(of(text).is_err(), "{text}");
        }
    }
}
