package leadergrpc_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/etcdtest"
	"github.com/tenure-go/tenure/leadergrpc"
)

// certificate is a self-signed one for name, and the clients' trust in it.
func certificate(t *testing.T, name string) (server, client credentials.TransportCredentials) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	require.NoError(t, err)
	parsed, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return credentials.NewServerTLSFromCert(&tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}),
		credentials.NewTLS(&tls.Config{RootCAs: pool})
}

// TestTLS: by itself a client accepts no certificate; with an authority, the one
// that all candidates share; with a ServerName, the leader's own.
func TestTLS(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		var h hosts
		server, client := certificate(t, "scheduler.internal")
		a := start(t, s.Client(), "a", "a:1", h.listen("a:1"), grpc.Creds(server))
		a.won(t, time.Second)
		trust := grpc.WithTransportCredentials(client)

		_, err := follow(t, s.Client(), h.dial, nil, trust).call(t)
		require.Equal(t, codes.Unavailable, status.Code(err))
		require.ErrorContains(t, err, "certificate is valid for scheduler.internal, not ")

		follow(t, s.Client(), h.dial, nil, trust, grpc.WithAuthority("scheduler.internal")).reaches(t, a)

		named := func(name string) *leadergrpc.Options {
			return &leadergrpc.Options{Address: func(l tenure.Leader) (resolver.Address, error) {
				return resolver.Address{Addr: l.Address, ServerName: name}, nil
			}}
		}
		follow(t, s.Client(), h.dial, named("scheduler.internal"), trust).reaches(t, a)
		_, err = follow(t, s.Client(), h.dial, named("scheduler.external"), trust).call(t)
		require.ErrorContains(t, err, "not scheduler.external")
	})
}
