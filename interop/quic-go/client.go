package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

const ticketPatience = 5 * time.Second

// Tickets in memory, and a notification when one arrives.
type tickets struct {
	tls.ClientSessionCache
	came chan struct{}
}

func (t tickets) Put(key string, state *tls.ClientSessionState) {
	t.ClientSessionCache.Put(key, state)
	select {
	case t.came <- struct{}{}:
	default:
	}
}

func runClient(testcase string) error {
	config, err := clientTLS(testcase)
	if err != nil {
		return err
	}
	urls := strings.Fields(os.Getenv("REQUESTS"))
	if len(urls) == 0 {
		return errors.New("REQUESTS is empty")
	}
	switch testcase {
	case "http3":
		return fetchHTTP3(config, urls)
	case "multiconnect":
		for _, one := range urls {
			if err := fetch(config, []string{one}, false); err != nil {
				return err
			}
		}
		return nil
	case "resumption", "zerortt":
		kept := tickets{tls.NewLRUClientSessionCache(8), make(chan struct{}, 1)}
		config.ClientSessionCache = kept
		if err := fetch(config, urls[:1], false); err != nil {
			return err
		}
		select {
		case <-kept.came:
		case <-time.After(ticketPatience):
			return errors.New("the server has sent no ticket")
		}
		return fetch(config, urls[1:], testcase == "zerortt")
	}
	return fetch(config, urls, false)
}

// The address of a URL's server, and its name.
func resolve(authority string) (string, string, error) {
	host, port, err := net.SplitHostPort(authority)
	if err != nil {
		return "", "", err
	}
	for _, pair := range strings.Fields(os.Getenv("RESOLVE")) {
		if name, address, _ := strings.Cut(pair, "="); name == host {
			return net.JoinHostPort(address, port), host, nil
		}
	}
	return authority, host, nil
}

func dial(ctx context.Context, authority string, config *tls.Config, quicConfig *quic.Config) (*quic.Conn, error) {
	address, name, err := resolve(authority)
	if err != nil {
		return nil, err
	}
	config = config.Clone()
	config.ServerName = name
	return quic.DialAddrEarly(ctx, address, config, quicConfig)
}

// Downloads files over HTTP/0.9 on a connection of their own, concurrently.
func fetch(config *tls.Config, urls []string, early bool) error {
	first, err := url.Parse(urls[0])
	if err != nil {
		return err
	}
	ctx := context.Background()
	connection, err := dial(ctx, first.Host, config, transport())
	if err != nil {
		return err
	}
	defer connection.CloseWithError(0, "")
	if !early {
		select {
		case <-connection.HandshakeComplete():
		case <-connection.Context().Done():
			return context.Cause(connection.Context())
		}
	}
	return all(urls, func(target *url.URL) error {
		stream, err := connection.OpenStreamSync(ctx)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(stream, "GET %s\r\n", target.Path); err != nil {
			return err
		}
		stream.Close()
		return store(target, stream)
	})
}

// Downloads files over HTTP/3.
func fetchHTTP3(config *tls.Config, urls []string) error {
	transport := &http3.Transport{TLSClientConfig: config, QUICConfig: transport(), Dial: dial}
	defer transport.Close()
	client := &http.Client{Transport: transport}
	return all(urls, func(target *url.URL) error {
		response, err := client.Get(target.String())
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", target, response.Status)
		}
		return store(target, response.Body)
	})
}

// Calls get for all URLs concurrently.
func all(urls []string, get func(*url.URL) error) error {
	results := make(chan error, len(urls))
	for _, one := range urls {
		target, err := url.Parse(one)
		if err != nil {
			return err
		}
		go func() { results <- get(target) }()
	}
	var failed error
	for range urls {
		failed = errors.Join(failed, <-results)
	}
	return failed
}

func store(target *url.URL, from io.Reader) error {
	file, err := os.Create(filepath.Join(setting("DOWNLOADS", "/downloads"), filepath.Base(target.Path)))
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(file, from)
	return err
}
