//! The fields of a request on the way to the application, and of the response on the way back.

use std::fmt::Write as _;
use std::net::IpAddr;

use http::header::{
    CONNECTION, COOKIE, EXPECT, FORWARDED, HOST, TE, TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::{HeaderMap, HeaderName, HeaderValue};

/// RFC 8470 §5.1
pub(super) const EARLY_DATA: HeaderName = HeaderName::from_static("early-data");

/// What the application learns about the client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Client<'a> {
    pub(super) address: IpAddr,
    /// The name by which the client calls this server; over HTTP/1.0 it may be missing.
    pub(super) host: Option<&'a str>,
    /// As in Via: `1.1`, `2.0`, `3.0`.
    pub(super) version: &'a str,
    /// Whether the request may be a replay (RFC 8470).
    pub(super) is_early: bool,
}

/// Turns a client's fields into those of a request to the application: fields of the client's
/// connection are removed, and those that say who the client is are replaced.
pub(super) fn to_application(headers: &mut HeaderMap, client: &Client<'_>) {
    let trailers = headers.get_all(TE).iter().any(|te| {
        let codings = te.to_str().unwrap_or_default().split(',');
        codings
            .filter_map(|coding| coding.split(';').next())
            .any(|coding| coding.trim().eq_ignore_ascii_case("trailers"))
    });
    remove_hop_by_hop(headers);
    remove_where(headers, is_claim);
    // This server answers it when the application takes the body.
    headers.remove(EXPECT);
    join_cookies(headers);
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    if client.is_early {
        headers.insert(EARLY_DATA, HeaderValue::from_static("1"));
    }
    let address = client.address.to_canonical();
    let mut forwarded = match address {
        IpAddr::V4(address) => format!("for={address}"),
        IpAddr::V6(address) => format!("for=\"[{address}]\""),
    };
    forwarded.push_str(";proto=https");
    set(headers, "x-forwarded-for", &address.to_string());
    set(headers, "x-forwarded-proto", "https");
    // Without one, the application's own is sent.
    headers.remove(HOST);
    if let Some(host) = client.host {
        set(headers, HOST.as_str(), host);
        set(headers, "x-forwarded-host", host);
        // RFC 7239 §4: a quoted string, since a port has a colon. An authority has no quotes.
        if !host.contains(['"', '\\']) {
            // Writing to a string does not fail.
            let _ = write!(forwarded, ";host=\"{host}\"");
        }
    }
    set(headers, FORWARDED.as_str(), &forwarded);
    // RFC 9110 §7.6.3: appended, so that loops become visible.
    if let Ok(via) = HeaderValue::try_from(format!("{} squall", client.version)) {
        headers.append(VIA, via);
    }
}

/// Turns the application's fields into those of a response to the client.
pub(super) fn to_client(headers: &mut HeaderMap) {
    remove_hop_by_hop(headers);
}

/// Removes the fields of a single connection (RFC 9110 §7.6.1).
fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in [CONNECTION, TE, TRANSFER_ENCODING, UPGRADE] {
        headers.remove(name);
    }
    headers.remove("keep-alive");
    // Proxy-Connection, Proxy-Authorization and the like, and `Proxy`, which CGI programs take for
    // the variable HTTP_PROXY.
    remove_where(headers, |name| {
        name.strip_prefix("proxy")
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    });
}

/// Whether applications trust this field to say who the client is or what it requested.
fn is_claim(name: &str) -> bool {
    name.starts_with("x-forwarded-") || matches!(name, "forwarded" | "x-real-ip" | "client-ip")
}

/// Removes fields by name, with underscores treated as hyphens: many applications read fields as
/// CGI does, where the two are the same.
fn remove_where(headers: &mut HeaderMap, unwanted: impl Fn(&str) -> bool) {
    let is_unwanted = |name: &&HeaderName| {
        let name = name.as_str();
        unwanted(name) || (name.contains('_') && unwanted(&name.replace('_', "-")))
    };
    let names: Vec<_> = headers.keys().filter(is_unwanted).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

/// RFC 9113 §8.2.3: several fields in HTTP/2 and HTTP/3 are a single one in HTTP/1.1.
fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(COOKIE).iter().nth(1).is_none() {
        return;
    }
    let cookies: Vec<_> = headers
        .get_all(COOKIE)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    if let Ok(joined) = HeaderValue::from_bytes(&cookies.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}

fn set(headers: &mut HeaderMap, name: &'static str, value: &str) {
    headers.remove(name);
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(HeaderName::from_static(name), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: Client<'_> = Client {
        address: IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)),
        host: Some("example.org:8443"),
        version: "2.0",
        is_early: false,
    };

    fn fields(fields: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            let name: HeaderName = name.parse().expect("a name");
            headers.append(name, value.parse().expect("a value"));
        }
        headers
    }

    fn sent(client: &[(&str, &str)]) -> Vec<(String, String)> {
        let mut headers = fields(client);
        to_application(&mut headers, &CLIENT);
        let text = |value: &HeaderValue| value.to_str().expect("text").to_owned();
        let mut sent: Vec<_> = headers
            .iter()
            .map(|(name, value)| (name.to_string(), text(value)))
            .collect();
        sent.sort();
        sent
    }

    #[test]
    fn forwarding_fields_sent_by_the_client_are_replaced() {
        let plain = sent(&[]);
        let expected = [
            (
                "forwarded",
                "for=192.0.2.1;proto=https;host=\"example.org:8443\"",
            ),
            ("host", "example.org:8443"),
            ("via", "2.0 squall"),
            ("x-forwarded-for", "192.0.2.1"),
            ("x-forwarded-host", "example.org:8443"),
            ("x-forwarded-proto", "https"),
        ];
        let got: Vec<_> = plain
            .iter()
            .map(|(a, b)| (a.as_str(), b.as_str()))
            .collect();
        assert_eq!(got, expected);
        let claims = [
            ("x-forwarded-for", "10.0.0.1"),
            ("x-forwarded-for", "10.0.0.2"),
            ("x-forwarded-proto", "http"),
            ("x-forwarded-host", "evil.example"),
            ("x-forwarded-port", "1"),
            ("x-forwarded-server", "a"),
            ("x_forwarded_for", "10.0.0.1"),
            ("x-forwarded_for", "10.0.0.1"),
            ("x-real-ip", "10.0.0.1"),
            ("x_real_ip", "10.0.0.1"),
            ("forwarded", "for=10.0.0.1"),
            ("host", "evil.example"),
            ("connection", "x-a, keep-alive, x-forwarded-for"),
            ("x-a", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "gzip"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("proxy", "http://evil.example"),
            ("proxy-connection", "close"),
            ("proxy-authorization", "Basic eDp5"),
            ("proxy_authorization", "Basic eDp5"),
            ("expect", "100-continue"),
        ];
        for claim in claims {
            let expected: Vec<_> = plain.iter().collect();
            let got = sent(&[claim]);
            let got: Vec<_> = got.iter().filter(|field| field.0 != "x-a").collect();
            let is_other = claim.0 == "x-a";
            assert_eq!(got, expected, "{claim:?}");
            assert_eq!(sent(&[claim]) == plain, !is_other, "{claim:?}");
        }
        assert_eq!(sent(&claims), plain);
    }

    #[test]
    fn other_fields_are_forwarded() {
        let got = sent(&[
            ("te", "gzip;q=0.5, trailers"),
            ("cookie", "a=1"),
            ("cookie", "b=2"),
            ("via", "1.1 cdn"),
            ("early-data", "1"),
            ("authorization", "Bearer x"),
            ("trailer", "digest"),
            ("x_custom", "1"),
            ("proxyish", "1"),
        ]);
        for field in [
            ("te", "trailers"),
            ("cookie", "a=1; b=2"),
            ("via", "1.1 cdn"),
            ("via", "2.0 squall"),
            ("early-data", "1"),
            ("authorization", "Bearer x"),
            ("trailer", "digest"),
            ("x_custom", "1"),
            ("proxyish", "1"),
        ] {
            let field = (field.0.to_owned(), field.1.to_owned());
            assert!(got.contains(&field), "{field:?} in {got:?}");
        }
        assert_eq!(got.len(), 6 + 8);
    }

    // test: RFC 8470 §5.1, RFC 7239 §6
    #[test]
    fn early_requests_and_ipv6_addresses_are_marked() {
        let mut headers = fields(&[("host", "")]);
        let client = Client {
            address: "2001:db8::1".parse().expect("an address"),
            host: None,
            version: "3.0",
            is_early: true,
        };
        to_application(&mut headers, &client);
        assert_eq!(headers[EARLY_DATA], "1");
        assert_eq!(headers[FORWARDED], "for=\"[2001:db8::1]\";proto=https");
        assert_eq!(headers["x-forwarded-for"], "2001:db8::1");
        assert!(!headers.contains_key("x-forwarded-host"));
        assert!(!headers.contains_key(HOST));
    }

    #[test]
    fn connection_specific_fields_are_removed_from_responses() {
        let mut headers = fields(&[
            ("connection", "close, x-hop"),
            ("x-hop", "1"),
            ("keep-alive", "1"),
            ("transfer-encoding", "chunked"),
            ("content-type", "text/plain"),
            ("x-forwarded-for", "kept"),
            ("set-cookie", "a"),
            ("set-cookie", "b"),
        ]);
        to_client(&mut headers);
        assert_eq!(headers.len(), 4, "{headers:?}");
        assert_eq!(headers.get_all("set-cookie").iter().count(), 2);
    }
}
