//! Generates the client and the server of the gRPC service in `tests/services` as `tonic` users do,
//! from a description in Rust rather than in protobuf, whose compiler may not be installed; and
//! tells tests the platform.

use tonic_build::manual::{Builder, Method, Service};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // For tests that ask cargo for the sources of a dependency.
    let target = std::env::var("TARGET").unwrap_or_default();
    println!("cargo::rustc-env=TARGET={target}");
    let method = |name: &str, route: &str, client: bool, server: bool| {
        let method = Method::builder()
            .name(name)
            .route_name(route)
            .input_type("super::Text")
            .output_type("super::Text")
            .codec_path("tonic_prost::ProstCodec");
        let method = if client {
            method.client_streaming()
        } else {
            method
        };
        let method = if server {
            method.server_streaming()
        } else {
            method
        };
        method.build()
    };
    let service = Service::builder()
        .package("squall")
        .name("Words")
        .method(method("one", "One", false, false))
        .method(method("split", "Split", false, true))
        .method(method("join", "Join", true, false))
        .method(method("shout", "Shout", true, true))
        .build();
    Builder::new().compile(&[service]);
}
