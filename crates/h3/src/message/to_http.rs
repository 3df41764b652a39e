//! Heads as the types of the `http` crate. All text of a section is copied once; values are slices
//! of that copy.

use bytes::{BufMut, Bytes, BytesMut};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version,
};

use super::fields::Protocol;
use super::head::{Malformed, RequestHead, ResponseHead};
use crate::qpack::{FieldLine, FieldSection, static_table};

const INVALID: Malformed = Malformed("the http crate cannot represent a field");

/// The request with this head, without a body.
pub(crate) fn request(head: &RequestHead<'_>) -> Result<Request<()>, Malformed> {
    let text = Text::copy(head.section);
    let mut request = Request::new(());
    *request.version_mut() = Version::HTTP_3;
    *request.method_mut() = method(head.method)?;
    let host = (head.authority.is_none())
        .then(|| head.field("host"))
        .flatten();
    let mut uri = http::uri::Parts::default();
    for line in head.section.iter().take(head.pseudo) {
        match line.name {
            b":scheme" => uri.scheme = Some(scheme(line.value)?),
            b":authority" => uri.authority = Some(authority(text.value(&line))?),
            b":path" => {
                let path = PathAndQuery::from_maybe_shared(text.value(&line));
                uri.path_and_query = Some(path.map_err(|_| INVALID)?);
            }
            b":protocol" => {
                let protocol = Protocol(text.value(&line));
                request.extensions_mut().insert(protocol);
            }
            _ => {}
        }
    }
    if let Some(host) = host {
        uri.authority = Some(authority(Bytes::copy_from_slice(host))?);
    }
    if uri.authority.is_none() {
        // Only schemes other than HTTP's come without an authority; the http crate has no URI with
        // a scheme alone.
        uri.scheme = None;
    }
    *request.uri_mut() = Uri::from_parts(uri).map_err(|_| INVALID)?;
    *request.headers_mut() = headers(head.section, head.pseudo, head.cookies, &text)?;
    Ok(request)
}

/// The response with this head, without a body.
pub(crate) fn response(head: &ResponseHead<'_>) -> Result<Response<()>, Malformed> {
    let mut response = Response::new(());
    *response.version_mut() = Version::HTTP_3;
    *response.status_mut() = StatusCode::from_u16(head.status).map_err(|_| INVALID)?;
    let text = Text::copy(head.section);
    *response.headers_mut() = headers(head.section, head.pseudo, 0, &text)?;
    Ok(response)
}

/// The fields of a trailer section.
pub(crate) fn trailers(section: &FieldSection) -> Result<HeaderMap, Malformed> {
    headers(section, 0, 0, &Text::copy(section))
}

fn method(method: &str) -> Result<Method, Malformed> {
    Method::from_bytes(method.as_bytes()).map_err(|_| INVALID)
}

fn scheme(scheme: &[u8]) -> Result<Scheme, Malformed> {
    match scheme {
        b"https" => Ok(Scheme::HTTPS),
        other => Scheme::try_from(other).map_err(|_| INVALID),
    }
}

fn authority(text: Bytes) -> Result<Authority, Malformed> {
    Authority::from_maybe_shared(text).map_err(|_| INVALID)
}

fn headers(
    section: &FieldSection,
    pseudo: usize,
    cookies: usize,
    text: &Text,
) -> Result<HeaderMap, Malformed> {
    let mut headers = HeaderMap::with_capacity(section.len() - pseudo);
    for line in section.iter().skip(pseudo) {
        if cookies > 1 && line.name == b"cookie" {
            continue;
        }
        let name = match line.static_name.and_then(super::names::standard) {
            Some(name) => name,
            None => HeaderName::from_bytes(line.name).map_err(|_| INVALID)?,
        };
        let mut value = HeaderValue::from_maybe_shared(text.value(&line)).map_err(|_| INVALID)?;
        value.set_sensitive(line.never_indexed);
        headers.try_append(name, value).map_err(|_| INVALID)?;
    }
    if cookies > 1 {
        headers.insert(http::header::COOKIE, joined_cookies(section)?);
    }
    Ok(headers)
}

/// RFC 9114 §4.2.1: cookies come in several lines, but HTTP/1.1 code expects one field.
fn joined_cookies(section: &FieldSection) -> Result<HeaderValue, Malformed> {
    let mut joined = BytesMut::new();
    for line in section.iter().filter(|line| line.name == b"cookie") {
        if !joined.is_empty() {
            joined.put_slice(b"; ");
        }
        joined.put_slice(line.value);
    }
    HeaderValue::from_maybe_shared(joined.freeze()).map_err(|_| INVALID)
}

/// A copy of a section's text.
struct Text(Bytes);

impl Text {
    fn copy(section: &FieldSection) -> Self {
        Self(Bytes::copy_from_slice(section.text()))
    }

    /// The value of a line of that section.
    fn value(&self, line: &FieldLine<'_>) -> Bytes {
        match line.value_range() {
            Some(range) if range.end <= self.0.len() => self.0.slice(range),
            _ => {
                let index = line.static_line.map_or(usize::MAX, usize::from);
                Bytes::from_static(static_table::get(index).unwrap_or_default().1)
            }
        }
    }
}
