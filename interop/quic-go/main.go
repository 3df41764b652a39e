// quic-go under the contract of the QUIC interop runner, in either role.
//
// The environment is that of squall's own endpoint (interop/src/bin/endpoint).
package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

const (
	unsupported = 127
	http09      = "hq-interop"
)

// A client's windows begin small, so that transfers prove that they grow.
const (
	clientStreamWindow = 64 << 10
	clientWindow       = 128 << 10
)

var both = []string{
	"handshake", "transfer", "multiplexing", "retry", "resumption", "zerortt", "multiconnect",
	"http3", "ecn",
}

// What a case needs that quic-go's API lacks.
var missing = map[string]string{
	"chacha20":            "Go's TLS has no setting for the cipher suites of TLS 1.3",
	"keyupdate":           "quic-go has no function that updates the keys",
	"v2":                  "quic-go does not change the version during a handshake",
	"connectionmigration": "quic-go announces no preferred address",
}

func main() {
	role, testcase := os.Getenv("ROLE"), os.Getenv("TESTCASE")
	if !slices.Contains(both, testcase) {
		reason := missing[testcase]
		if reason == "" {
			reason = "no such case: " + testcase
		}
		fmt.Fprintln(os.Stderr, reason)
		os.Exit(unsupported)
	}
	var err error
	switch role {
	case "client":
		err = runClient(testcase)
	case "server":
		err = runServer(testcase)
	default:
		err = errors.New("ROLE must be client or server")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func setting(name, usual string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return usual
}

func protocol(testcase string) string {
	if testcase == "http3" {
		return http3.NextProtoH3
	}
	return http09
}

// The TLS of either role, without certificates.
func commonTLS(testcase string) (*tls.Config, error) {
	config := &tls.Config{NextProtos: []string{protocol(testcase)}, MinVersion: tls.VersionTLS13}
	if path := os.Getenv("SSLKEYLOGFILE"); path != "" {
		file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, err
		}
		config.KeyLogWriter = file
	}
	return config, nil
}

func serverTLS(testcase string) (*tls.Config, error) {
	config, err := commonTLS(testcase)
	if err != nil {
		return nil, err
	}
	certs := setting("CERTS", "/certs")
	certificate, err := tls.LoadX509KeyPair(certs+"/cert.pem", certs+"/priv.key")
	config.Certificates = []tls.Certificate{certificate}
	return config, err
}

func clientTLS(testcase string) (*tls.Config, error) {
	config, err := commonTLS(testcase)
	if err != nil {
		return nil, err
	}
	roots, err := os.ReadFile(setting("CERTS", "/certs") + "/ca.pem")
	if err != nil {
		return nil, err
	}
	config.RootCAs = x509.NewCertPool()
	if !config.RootCAs.AppendCertsFromPEM(roots) {
		return nil, errors.New("no certificate in ca.pem")
	}
	return config, nil
}

func transport() *quic.Config {
	return &quic.Config{
		Versions:                       []quic.Version{quic.Version1},
		InitialStreamReceiveWindow:     clientStreamWindow,
		InitialConnectionReceiveWindow: clientWindow,
	}
}
