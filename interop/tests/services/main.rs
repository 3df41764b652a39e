//! An axum application and a tonic service with its client, unchanged, over HTTP/3 with squall-h3
//! and over HTTP/2 with hyper: their responses are equal.

mod axum_application;
#[path = "../../examples/grpc/channel.rs"]
mod channel;
mod grpc;
mod servers;
#[path = "../../examples/grpc/words.rs"]
mod words;
