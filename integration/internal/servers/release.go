package servers

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// EtcdServer is a process of a released etcd. Its DSN is the endpoint.
type EtcdServer struct {
	*Server

	// TLS is what a client needs to be let in, or nil.
	TLS *tls.Config

	program string
}

// EtcdRelease starts a server of one member of a release of etcd, such as 3.6,
// which grants leases of one second, or skips. With secure it wants TLS and a
// certificate of its clients. The program is etcd and the release in the folder
// that TENURE_ETCD names, or on the path; `make integration` brings it there.
func EtcdRelease(t testing.TB, release string, secure bool) *EtcdServer {
	t.Helper()
	program := find(t, "etcd "+release, filepath.Join(os.Getenv("TENURE_ETCD"), "etcd"+release))
	e := &EtcdServer{Server: prepare(t, ""), program: program}
	client, peer, health := freeURL(t), freeURL(t), freeURL(t)
	if secure {
		client.Scheme = "https"
	}
	e.DSN = client.String()
	e.args = []string{
		program, "--data-dir", e.path("data"), "--listen-client-urls", e.DSN, "--advertise-client-urls", e.DSN,
		"--listen-peer-urls", peer.String(), "--initial-advertise-peer-urls", peer.String(), "--initial-cluster", "default=" + peer.String(),
		"--listen-metrics-urls", health.String(), "--heartbeat-interval", "50", "--election-timeout", "500",
		"--bcrypt-cost", "4", "--logger", "zap", "--log-level", "error",
	}
	if secure {
		e.TLS = e.certify(t)
		cert, key := e.path("cert.pem"), e.path("key.pem")
		e.args = append(e.args, "--cert-file", cert, "--key-file", key, "--trusted-ca-file", cert, "--client-cert-auth")
	}
	e.crash = syscall.SIGKILL
	health.Path = "/health"
	e.ready = func(ctx context.Context) error { return get(ctx, health.String()) }
	e.begin(t)
	return e
}

// Proxy starts the gRPC proxy of e's release in front of e, which must not want
// TLS.
func (e *EtcdServer) Proxy(t testing.TB) *Server {
	t.Helper()
	s := prepare(t, "")
	s.DSN = freeURL(t).Host
	s.args = []string{e.program, "grpc-proxy", "start", "--endpoints", e.DSN, "--listen-addr", s.DSN}
	s.crash = syscall.SIGKILL
	s.ready = func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", s.DSN)
		if err != nil {
			return err
		}
		return conn.Close()
	}
	return s.begin(t)
}

func get(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	return nil
}

// certify makes one certificate which is its own authority, the server's, and
// the client's.
func (e *EtcdServer) certify(t testing.TB) *tls.Config {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	must(err)
	privateDER, err := x509.MarshalPKCS8PrivateKey(private)
	must(err)
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: privateDER})
	must(os.WriteFile(e.path("cert.pem"), cert, 0o600))
	must(os.WriteFile(e.path("key.pem"), key, 0o600))
	pair, err := tls.X509KeyPair(cert, key)
	must(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cert)
	return &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots, MinVersion: tls.VersionTLS12}
}
