package tenure_test

import (
	"context"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/internal/etcdtest"
)

// The text form is sent to processes of other versions, so it must not change.
func TestFenceText(t *testing.T) {
	for name, tt := range map[string]struct {
		fence tenure.Fence
		text  string
	}{
		"Usual":         {tenure.Fence{Key: "/scheduler/leader", Epoch: 42, Lease: 0x32698f2a0b7c5d03}, "42:32698f2a0b7c5d03:/scheduler/leader"},
		"Smallest":      {tenure.Fence{Key: "k", Epoch: 1, Lease: 1}, "1:1:k"},
		"Largest":       {tenure.Fence{Key: "k", Epoch: 1<<63 - 1, Lease: 1<<63 - 1}, "9223372036854775807:7fffffffffffffff:k"},
		"NegativeLease": {tenure.Fence{Key: "k", Epoch: 1, Lease: -1}, "1:ffffffffffffffff:k"},
		"Colon":         {tenure.Fence{Key: "a:b:c", Epoch: 1, Lease: 1}, "1:1:a:b:c"},
		"OnlyColon":     {tenure.Fence{Key: ":", Epoch: 1, Lease: 1}, "1:1::"},
		"Percent":       {tenure.Fence{Key: "100%2F%", Epoch: 1, Lease: 1}, "1:1:100%252F%25"},
		"Space":         {tenure.Fence{Key: " a b ", Epoch: 1, Lease: 1}, "1:1:%20a%20b%20"},
		"Plus":          {tenure.Fence{Key: "a+b", Epoch: 1, Lease: 1}, "1:1:a+b"},
		"Slashes":       {tenure.Fence{Key: "//a/../b/", Epoch: 1, Lease: 1}, "1:1://a/../b/"},
		"QueryAndMore":  {tenure.Fence{Key: "a?b#c;d,e", Epoch: 1, Lease: 1}, "1:1:a%3Fb%23c;d,e"},
		"Quotes":        {tenure.Fence{Key: `"'` + "`\\", Epoch: 1, Lease: 1}, "1:1:%22%27%60%5C"},
		"Star":          {tenure.Fence{Key: "*", Epoch: 1, Lease: 1}, "1:1:*"},
		"Newline":       {tenure.Fence{Key: "a\r\nb\t", Epoch: 1, Lease: 1}, "1:1:a%0D%0Ab%09"},
		"Zeros":         {tenure.Fence{Key: "\x00\x00", Epoch: 1, Lease: 1}, "1:1:%00%00"},
		"NotUTF8":       {tenure.Fence{Key: "\xff\xfea", Epoch: 1, Lease: 1}, "1:1:%FF%FEa"},
		"Umlaut":        {tenure.Fence{Key: "führer/世", Epoch: 1, Lease: 1}, "1:1:f%C3%BChrer/%E4%B8%96"},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, tt.fence.Validate())
			require.Equal(t, tt.text, tt.fence.String())
			text, err := tt.fence.MarshalText()
			require.NoError(t, err)
			require.Equal(t, tt.text, string(text))
			var got tenure.Fence
			require.NoError(t, got.UnmarshalText(text))
			require.Equal(t, tt.fence, got)

			type job struct {
				Fence tenure.Fence
				Seen  map[tenure.Fence]int
			}
			sent := job{Fence: tt.fence, Seen: map[tenure.Fence]int{tt.fence: 3}}
			data, err := json.Marshal(sent)
			require.NoError(t, err)
			var received job
			require.NoError(t, json.Unmarshal(data, &received))
			require.Equal(t, sent, received)
			require.Equal(t, 3, received.Seen[tt.fence])
		})
	}
}

func TestFenceTextErrorsNameWhatIsWrong(t *testing.T) {
	for name, tt := range map[string]struct{ text, says string }{
		"Empty":            {"", "epoch:lease:key"},
		"NoSeparator":      {"42", "epoch:lease:key"},
		"NoKey":            {"42:1", "epoch:lease:key"},
		"EmptyKey":         {"42:1:", "Fence.Key is empty"},
		"EmptyEpoch":       {":1:k", "no epoch"},
		"EpochNoNumber":    {"4x2:1:k", "no epoch"},
		"EpochInHex":       {"0x2a:1:k", "no epoch"},
		"EpochTooLarge":    {"9223372036854775808:1:k", "no epoch"},
		"EpochZero":        {"0:1:k", "Fence.Epoch is 0"},
		"EpochNegative":    {"-3:1:k", "Fence.Epoch is -3"},
		"SpaceBeforeEpoch": {" 42:1:k", "no epoch"},
		"EmptyLease":       {"42::k", "no lease"},
		"LeaseNoNumber":    {"42:xyz:k", "no lease"},
		"LeaseTooLarge":    {"42:10000000000000000:k", "no lease"},
		"LeaseNegative":    {"42:-1:k", "no lease"},
		"LeaseZero":        {"42:0:k", "Fence.Lease is 0"},
		"BrokenEscape":     {"42:1:a%2", "no key"},
		"EscapeNoHex":      {"42:1:a%zz", "no key"},
	} {
		t.Run(name, func(t *testing.T) {
			before := tenure.Fence{Key: "before", Epoch: 7, Lease: 7}
			fence := before
			err := fence.UnmarshalText([]byte(tt.text))
			require.ErrorContains(t, err, tt.says)
			require.ErrorContains(t, err, "tenure: ")
			require.Equal(t, before, fence, "a text that is refused must change nothing")
		})
	}
}

// F02. What cannot be the fence of a term must not look like one to a reader
// further on.
func TestAnInvalidFenceHasNoTextForm(t *testing.T) {
	for name, tt := range map[string]struct {
		fence tenure.Fence
		says  string
	}{
		"Zero":          {tenure.Fence{}, "Fence.Key is empty"},
		"NoKey":         {tenure.Fence{Epoch: 1, Lease: 1}, "Fence.Key is empty"},
		"EpochZero":     {tenure.Fence{Key: "k", Lease: 1}, "Fence.Epoch is 0"},
		"EpochNegative": {tenure.Fence{Key: "k", Epoch: -1, Lease: 1}, "Fence.Epoch is -1"},
		"NoLease":       {tenure.Fence{Key: "k", Epoch: 1}, "Fence.Lease is 0"},
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorContains(t, tt.fence.Validate(), tt.says)
			_, err := tt.fence.MarshalText()
			require.ErrorContains(t, err, tt.says)
			_, err = json.Marshal(tt.fence)
			require.ErrorContains(t, err, tt.says)
			var got tenure.Fence
			require.Error(t, got.UnmarshalText([]byte(tt.fence.String())), "String has made a text that reads as a fence")
		})
	}
}

// F01. The leader of epoch 1 comes back as the leader of epoch 2, under the same
// name and the same elector. What it sent in its first term is too old.
func TestAWriteOfAnEarlierTermOfTheSameLeaderIsFenced(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		elector := newElector(t, s.Client(), &tenure.Options{Identity: "a"})
		first, err := elector.Campaign(t.Context())
		require.NoError(t, err)

		worker := s.Client()
		held := worker.Faults.Next("Txn", etcdtest.HoldRequest())
		delayed := make(chan error, 1)
		go func() {
			_, err := first.Fence().KV(worker).Put(t.Context(), "/data/a", "of the first term")
			delayed <- err
		}()
		etcdtest.Await(t, time.Second, "Fired", held.Fired())
		require.NoError(t, first.Resign())

		second, err := elector.Campaign(t.Context())
		require.NoError(t, err)
		defer func() { _ = second.Resign() }()
		require.Greater(t, second.Epoch(), first.Epoch())
		_, err = second.KV(worker).Put(t.Context(), "/data/a", "of the second term")
		require.NoError(t, err)

		held.Release()
		err = etcdtest.Await(t, time.Second, "Put", delayed)
		require.ErrorIs(t, err, tenure.ErrFenced)
		leader, ok := tenure.LeaderOf(err)
		require.True(t, ok)
		require.Equal(t, second.Fence(), leader.Fence)
		require.Equal(t, "a", leader.Identity)
		require.Equal(t, "of the second term", string(s.Keys("/data/")[0].Value))
		require.True(t, second.Valid(), "the refusal was the first term's")
	})
}

// Somebody who overwrites the key keeps its create revision. Then the fence
// holds no more, since the holder may have changed with the lease.
func TestTheSameEpochOnAnotherLeaseIsFenced(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		term := lead(t, newElector(t, s.Client(), nil))
		fence, worker := term.Fence(), s.Client()
		_, err := fence.KV(worker).Put(t.Context(), "/data/a", "1")
		require.NoError(t, err)

		other, err := s.Admin().Grant(t.Context(), 60)
		require.NoError(t, err)
		for _, lease := range []clientv3.LeaseID{other.ID, clientv3.NoLease} {
			_, err = s.Admin().Put(t.Context(), key, string(s.Keys(key)[0].Value), clientv3.WithLease(lease))
			require.NoError(t, err)

			_, err = fence.KV(worker).Put(t.Context(), "/data/a", "2")
			require.ErrorIs(t, err, tenure.ErrFenced)
			leader, ok := tenure.LeaderOf(err)
			require.True(t, ok)
			require.Equal(t, tenure.Fence{Key: key, Epoch: fence.Epoch, Lease: lease}, leader.Fence)
		}
		require.Equal(t, "1", string(s.Keys("/data/")[0].Value))
	})
}

// F06. A plain restore of an older snapshot lets etcd hand out an epoch again.
func TestTheSameEpochAfterARestoreIsFenced(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		s.Stop()
		snapshot := s.Snapshot()
		s.Start()
		before := lead(t, newElector(t, s.Client(), nil)).Fence()
		s.Stop()
		s.Restore(snapshot)
		s.Start()
		after := lead(t, newElector(t, s.Client(), nil)).Fence()
		require.Equal(t, before.Epoch, after.Epoch, "the restore did not repeat the epoch, so this shows nothing")
		require.NotEqual(t, before, after)

		_, err := before.KV(s.Client()).Put(t.Context(), "/data/a", "1")
		require.ErrorIs(t, err, tenure.ErrFenced)
		leader, _ := tenure.LeaderOf(err)
		require.Equal(t, after, leader.Fence)
		require.Empty(t, s.Keys("/data/"))
		_, err = after.KV(s.Client()).Put(t.Context(), "/data/a", "1")
		require.NoError(t, err)
	})
}

// F07. The answer that says "created" gets lost, and so does the watch's event.
// So the campaign finds its own key in the answer to its next attempt, which has
// a later revision; and later the record is written again. Neither may leak
// another revision into the epoch.
func TestEpochIsTheKeysCreateRevision(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		c.Faults.On("Watch", etcdtest.LoseAnswer())
		creates := etcdtest.Match(func(r *pb.TxnRequest) bool { return len(r.Compare) > 0 })
		lost := c.Faults.Next("Txn", etcdtest.DropAnswer(etcdtest.Unavailable), creates)
		go func() {
			<-lost.Fired()
			_, _ = s.Admin().Put(t.Context(), "/other", "raises the revision")
		}()
		term := lead(t, newElector(t, c, nil))
		require.Equal(t, 1, lost.Hits())
		require.NoError(t, term.Announce(t.Context(), "elsewhere", nil))

		kv := s.Keys(key)[0]
		require.Greater(t, kv.ModRevision, kv.CreateRevision)
		require.Equal(t, tenure.Epoch(kv.CreateRevision), term.Epoch())
		require.Equal(t, term.Epoch(), term.Fence().Epoch)
		require.Equal(t, clientv3.LeaseID(kv.Lease), term.Fence().Lease)
		_, err := term.KV(c).Put(t.Context(), "/data/a", "1")
		require.NoError(t, err, "an announcement is no new term")
	})
}

// F10. In a design with a queue a candidate's own key has a create revision, and
// a guard that asks for it passes. Here a candidate has no key.
func TestACandidateHasNoFence(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		term := lead(t, newElector(t, s.Client(), nil))
		ctx, cancel := context.WithCancel(t.Context())
		candidate := newElector(t, s.Client(), nil)
		done := make(chan error, 1)
		go func() {
			_, err := candidate.Campaign(ctx)
			done <- err
		}()
		time.Sleep(time.Minute)
		require.Nil(t, candidate.Term())
		keys := s.Keys("/")
		require.Len(t, keys, 1, "only the election's own key stands in etcd")
		require.Equal(t, int64(term.Fence().Lease), keys[0].Lease)
		cancel()
		require.ErrorIs(t, etcdtest.Await(t, 10*time.Second, "Campaign", done), context.Canceled)
	})
}

// S06. The delete of a resign was applied, its answer got lost, and another
// candidate has won by the time the resign is repeated.
func TestARepeatedResignLeavesTheSuccessorAlone(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		elector := newElector(t, c, nil)
		term, err := elector.Campaign(t.Context())
		require.NoError(t, err)
		deletes := etcdtest.Match(func(r *pb.TxnRequest) bool {
			return len(r.Success) == 1 && r.Success[0].GetRequestDeleteRange() != nil
		})
		unanswered := c.Faults.On("Txn", etcdtest.DropAnswer(etcdtest.Unavailable), deletes)
		require.ErrorIs(t, term.Resign(), tenure.ErrUnknownOutcome)
		require.Empty(t, s.Keys(key))

		successor := lead(t, newElector(t, s.Client(), nil))
		require.ErrorIs(t, term.Resign(), tenure.ErrUnknownOutcome)
		unanswered.Stop()
		require.NoError(t, term.Resign())
		require.Len(t, s.Keys(key), 1)
		require.Equal(t, int64(successor.Epoch()), s.Keys(key)[0].CreateRevision)
		time.Sleep(time.Minute)
		require.NoError(t, successor.Verify(t.Context()))
	})
}

// S06, F06. The successor's key has the same create revision, after a plain
// restore of a snapshot. Only the lease tells that it is another one.
func TestAResignAfterARestoreLeavesTheSuccessorAlone(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		s.Stop()
		snapshot := s.Snapshot()
		s.Start()
		c := s.Client()
		term := lead(t, newElector(t, c, nil))
		c.Link.Cut() // so that it does not learn of the restore before it resigns
		s.Stop()
		s.Restore(snapshot)
		s.Start()
		successor := lead(t, newElector(t, s.Client(), nil))
		require.Equal(t, term.Epoch(), successor.Epoch(), "the restore did not repeat the epoch, so this shows nothing")
		require.True(t, term.Valid(), "it knows already, so this shows nothing")

		c.Link.Heal()
		require.NoError(t, term.Resign())
		require.Len(t, s.Keys(key), 1)
		require.Equal(t, int64(successor.Fence().Lease), s.Keys(key)[0].Lease)
		require.NoError(t, successor.Verify(t.Context()))
	})
}

// W17. A holder that only looks for the deletion of its key misses most of this.
func TestTheHolderNoticesThatItsKeyIsReplaced(t *testing.T) {
	anew := func(ctx context.Context, admin *clientv3.Client) error {
		if _, err := admin.Delete(ctx, key); err != nil {
			return err
		}
		_, err := admin.Put(ctx, key, "{}")
		return err
	}
	onItsLease := func(ctx context.Context, admin *clientv3.Client) error {
		_, err := admin.Put(ctx, key, "{}", clientv3.WithIgnoreLease())
		return err
	}
	// The same value again, so that only the lease tells.
	on := func(lease func(ctx context.Context, admin *clientv3.Client) (clientv3.LeaseID, error)) func(context.Context, *clientv3.Client) error {
		return func(ctx context.Context, admin *clientv3.Client) error {
			id, err := lease(ctx, admin)
			if err != nil {
				return err
			}
			resp, err := admin.Get(ctx, key)
			if err != nil {
				return err
			}
			_, err = admin.Put(ctx, key, string(resp.Kvs[0].Value), clientv3.WithLease(id))
			return err
		}
	}
	none := func(context.Context, *clientv3.Client) (clientv3.LeaseID, error) { return clientv3.NoLease, nil }
	another := func(ctx context.Context, admin *clientv3.Client) (clientv3.LeaseID, error) {
		lease, err := admin.Grant(ctx, 60)
		if err != nil {
			return 0, err
		}
		return lease.ID, nil
	}
	for name, tt := range map[string]struct {
		replace func(ctx context.Context, admin *clientv3.Client) error
		reasons []tenure.Reason
		left    int // keys after a resign, which takes away what is the term's
	}{
		// The deletion may be seen before the creation.
		"CreatedAnew":           {anew, []tenure.Reason{tenure.KeyDeleted, tenure.KeyReplaced}, 1},
		"OverwrittenOnItsLease": {onItsLease, []tenure.Reason{tenure.KeyReplaced}, 0},
		"PutWithoutLease":       {on(none), []tenure.Reason{tenure.KeyReplaced}, 0},
		"PutOnAnotherLease":     {on(another), []tenure.Reason{tenure.KeyReplaced}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
				c := s.Client()
				term := lead(t, newElector(t, c, nil))
				time.Sleep(time.Second)                            // the watch is open
				lost := c.Faults.On("Txn", etcdtest.LoseRequest()) // no renewal can tell, only the watch
				require.NoError(t, tt.replace(t.Context(), s.Admin()))
				etcdtest.Await(t, 10*time.Millisecond, "Done", term.Context().Done())
				require.False(t, term.Valid())
				var reason tenure.Reason
				require.ErrorAs(t, context.Cause(term.Context()), &reason)
				require.Contains(t, tt.reasons, reason)
				require.ErrorIs(t, term.Err(), reason)

				lost.Stop()
				require.NoError(t, term.Resign())
				require.Len(t, s.Keys(key), tt.left)
			})
		})
	}
}

// W17. And a follower that only looks for deletions goes on with the old leader.
func TestAFollowerNoticesThatTheKeyIsReplaced(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		first := lead(t, newElector(t, s.Client(), nil))
		c := s.Client()
		ctx, cancel := context.WithCancel(t.Context())
		follower := newElector(t, c, nil)
		done := make(chan error, 1)
		go func() {
			_, err := follower.Campaign(ctx)
			done <- err
		}()
		epoch := func() tenure.Epoch { return follower.Status().Leader.Fence.Epoch }
		etcdtest.Eventually(t, time.Second, "Status().Leader.Fence.Epoch", first.Epoch(), epoch)

		time.Sleep(time.Second) // the watch is open
		c.Faults.On("Watch", etcdtest.EditAnswer(func(r *pb.WatchResponse) {
			r.Events = slices.DeleteFunc(r.Events, func(e *mvccpb.Event) bool { return e.Type == mvccpb.Event_DELETE })
		}))
		resp, err := s.Admin().Delete(t.Context(), key)
		require.NoError(t, err)
		_, err = s.Admin().Put(t.Context(), key, "{}")
		require.NoError(t, err)
		next := tenure.Epoch(resp.Header.Revision + 1)
		etcdtest.Eventually(t, time.Second, "Status().Leader.Fence.Epoch", next, epoch)
		cancel()
		require.ErrorIs(t, etcdtest.Await(t, 10*time.Second, "Campaign", done), context.Canceled)
	})
}

// F01. On a lease that lives on, two terms of one elector differ in nothing but
// their epochs.
func TestTermsOnOneLeaseDifferByTheirEpoch(t *testing.T) {
	etcdtest.Bubble(t, func(t *testing.T, s *etcdtest.Server) {
		c := s.Client()
		lease, err := tenure.NewLease(c.Client, nil)
		require.NoError(t, err)
		other, err := tenure.New(c.Client, "/other", &tenure.Options{Lease: lease})
		require.NoError(t, err)
		lead(t, other) // keeps the lease
		e := newElector(t, c, &tenure.Options{Lease: lease})
		first, err := e.TryCampaign(t.Context())
		require.NoError(t, err)
		require.NoError(t, first.Resign())
		second, err := e.TryCampaign(t.Context())
		require.NoError(t, err)
		require.Equal(t, first.Fence().Lease, second.Fence().Lease)
		_, err = first.Fence().KV(c).Put(t.Context(), "/data/x", "1")
		require.ErrorIs(t, err, tenure.ErrFenced)
		require.Empty(t, s.Keys("/data/"))
		_, err = second.Fence().KV(c).Put(t.Context(), "/data/x", "2")
		require.NoError(t, err)
		require.NoError(t, second.Resign())
	})
}
