//! Messages as fields: RFC 9114 §4.
//!
//! ```text
//!   FieldSection ─ head ─> RequestHead, ResponseHead   checked, borrowed
//!                              └─ to_http ─> http::Request, http::Response, HeaderMap
//!   http::Request, http::Response ─ fields ─> Field …  ─> QPACK
//! ```
//! A message that breaks a rule is malformed: a stream error of type H3_MESSAGE_ERROR (RFC 9114
//! §4.1.2). The rules keep two servers from reading one message as two (request smuggling).

mod fields;
mod head;
mod names;
mod to_http;

pub use fields::{Early, Protocol};
pub(crate) use fields::{
    complete_path, never_has_body, request_fields, response_fields, trailer_fields,
};
pub use head::{Fields, RequestHead};
pub(crate) use head::{Malformed, ResponseHead, check_trailers};
pub(crate) use to_http::{request, response, trailers};
