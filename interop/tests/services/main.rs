//! An axum application and a tonic service with its client, unchanged, over HTTP/3 by squall-h3 and
//! over HTTP/2 by hyper: their responses are equal.

mod axum_application;
mod grpc;
mod servers;
#[path = "../../examples/grpc/words.rs"]
mod words;
