package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

const maxRequest = 4096

// Serves until SIGTERM.
func runServer(testcase string) error {
	config, err := serverTLS(testcase)
	if err != nil {
		return err
	}
	address, err := net.ResolveUDPAddr("udp", setting("LISTEN", "[::]:443"))
	if err != nil {
		return err
	}
	socket, err := net.ListenUDP("udp", address)
	if err != nil {
		return err
	}
	listening := &quic.Transport{
		Conn:                socket,
		VerifySourceAddress: func(net.Addr) bool { return testcase == "retry" },
	}
	listener, err := listening.ListenEarly(config, &quic.Config{Allow0RTT: testcase == "zerortt"})
	if err != nil {
		return err
	}
	stopped, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	www := setting("WWW", "/www")
	if testcase == "http3" {
		server := http3.Server{Handler: http.FileServer(http.Dir(www))}
		go server.ServeListener(listener)
		<-stopped.Done()
		return server.Close()
	}
	for {
		connection, err := listener.Accept(stopped)
		if stopped.Err() != nil {
			return listening.Close()
		}
		if err != nil {
			return err
		}
		go serveConnection(connection, www)
	}
}

func serveConnection(connection *quic.Conn, www string) {
	for {
		stream, err := connection.AcceptStream(context.Background())
		if err != nil {
			return
		}
		go answer(stream, www)
	}
}

// Answers an HTTP/0.9 request. A stream whose file does not exist is reset.
func answer(stream *quic.Stream, www string) {
	// Read to its end: otherwise quic-go keeps the stream, and allows no other in its place.
	line, err := io.ReadAll(io.LimitReader(stream, maxRequest))
	name, isGet := strings.CutPrefix(strings.TrimSpace(string(line)), "GET /")
	if err != nil || !isGet || !filepath.IsLocal(name) {
		stream.CancelWrite(1)
		return
	}
	file, err := os.Open(filepath.Join(www, name))
	if err != nil {
		stream.CancelWrite(1)
		return
	}
	defer file.Close()
	if _, err := file.WriteTo(stream); err != nil {
		stream.CancelWrite(1)
		return
	}
	stream.Close()
}
