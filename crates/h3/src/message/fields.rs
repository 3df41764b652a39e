//! Requests, responses and trailers as fields to encode.

use bytes::Bytes;
use http::header::{CONNECTION, HOST, HeaderName, TE, TRANSFER_ENCODING, UPGRADE};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, response};

use crate::qpack::Field;

/// The protocol of an extended CONNECT request, such as `websocket` or `webtransport` (RFC 8441 §4,
/// RFC 9220): an extension of the [`http::Request`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protocol(pub(super) Bytes);

impl Protocol {
    /// A protocol of this name.
    #[must_use]
    pub const fn from_static(name: &'static str) -> Self {
        Self(Bytes::from_static(name.as_bytes()))
    }

    /// The protocol's name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // Requests whose `:protocol` is not text are malformed.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// An extension of an [`http::Request`] that arrived as early data (0-RTT) and whose handshake is
/// not complete: an attacker may have replayed it (RFC 8470). A service that should not act on such
/// a request answers 425 Too Early, and the client repeats it later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Early;

/// Gives a URI with a query but no path, such as `https://example.org?a=b`, the path `/`.
///
/// RFC 9114 §4.3.1: `:path` is not empty and begins with a slash.
pub(crate) fn complete_path(uri: &mut Uri) {
    let incomplete = uri
        .path_and_query()
        .filter(|it| it.as_str().starts_with('?'));
    let Some(query) = incomplete else {
        return;
    };
    let path = PathAndQuery::try_from(format!("/{query}", query = query.as_str()));
    let mut parts = std::mem::take(uri).into_parts();
    if let Ok(path) = path {
        parts.path_and_query = Some(path);
    }
    // The parts are those of a URI.
    *uri = Uri::from_parts(parts).unwrap_or_default();
}

/// The fields of a request with this head, whose path is [complete](complete_path).
pub(crate) fn request_fields<'a>(
    method: &'a Method,
    uri: &'a Uri,
    headers: &'a HeaderMap,
    protocol: Option<&'a Protocol>,
) -> impl Iterator<Item = Field<'a>> {
    let is_plain_connect = *method == Method::CONNECT && protocol.is_none();
    let (scheme, path) = if is_plain_connect {
        (None, None)
    } else {
        let path = uri.path_and_query().map_or("/", PathAndQuery::as_str);
        (Some(uri.scheme_str().unwrap_or("https")), Some(path))
    };
    let authority = uri
        .authority()
        .map(|authority| without_userinfo(authority.as_str()).as_bytes());
    let authority = authority.or_else(|| headers.get(HOST).map(value_of));
    let mut pseudo = [None; 5];
    pseudo[0] = Some(Field::new(b":method", method.as_str().as_bytes()));
    pseudo[1] = scheme.map(|scheme| Field::new(b":scheme", scheme.as_bytes()));
    pseudo[2] = authority.map(|authority| Field::new(b":authority", authority));
    pseudo[3] = path.map(|path| Field::new(b":path", path.as_bytes()));
    pseudo[4] = protocol.map(|protocol| Field::new(b":protocol", &protocol.0));
    let rest = trailer_fields(headers).filter(|field| field.name != b"host");
    pseudo.into_iter().flatten().chain(rest)
}

/// The fields of a response with this head.
pub(crate) fn response_fields(head: &response::Parts) -> impl Iterator<Item = Field<'_>> {
    let status = Field::new(b":status", head.status.as_str().as_bytes());
    // RFC 9110 §8.6.
    let without_length = head.status.is_informational() || head.status == StatusCode::NO_CONTENT;
    let rest = trailer_fields(&head.headers)
        .filter(move |field| !without_length || field.name != b"content-length");
    std::iter::once(status).chain(rest)
}

/// Whether a response of this status has no body, whatever the request was (RFC 9110 §6.4.1).
pub(crate) fn never_has_body(status: StatusCode) -> bool {
    status.is_informational() || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

/// All fields except those that belong to a connection of another version (RFC 9114 §4.2).
pub(crate) fn trailer_fields(headers: &HeaderMap) -> impl Iterator<Item = Field<'_>> {
    let belongs = |(name, value): &(&HeaderName, &HeaderValue)| !is_of_connection(name, value);
    headers.iter().filter(belongs).map(|(name, value)| Field {
        name: name.as_str().as_bytes(),
        value: value_of(value),
        sensitive: value.is_sensitive(),
    })
}

/// A value as it is sent. RFC 9114 §4.2, RFC 9110 §5.5: spaces and tabs around it, which a
/// [`HeaderValue`] may have, are not part of it, and a peer that finds any rejects the message.
#[inline]
fn value_of(value: &HeaderValue) -> &[u8] {
    value.as_bytes().trim_ascii()
}

/// RFC 9114 §4.3.1: `:authority` is sent without the name and password of a URI such as
/// `https://name:password@example.org/`.
fn without_userinfo(authority: &str) -> &str {
    authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host)
}

/// Whether a field is specific to HTTP/1.1 connections, and malformed here.
fn is_of_connection(name: &HeaderName, value: &HeaderValue) -> bool {
    match *name {
        CONNECTION | TRANSFER_ENCODING | UPGRADE => true,
        TE => value_of(value) != b"trailers",
        _ => matches!(name.as_str(), "keep-alive" | "proxy-connection"),
    }
}
