// Package statushttp shows over HTTP what an elector does: a status page for
// people, the same as JSON, and three probes for those who start and stop
// processes or send requests to them.
//
//	monitor := statushttp.New("node-1")
//	elector, err := tenure.New(client, key, &tenure.Options{Identity: "node-1", Hooks: monitor.Hooks(nil)})
//
//	http.Handle("/status", monitor.Page(elector))
//	http.Handle("/livez", monitor.Live(elector, 5*time.Minute))
//	http.Handle("/readyz", monitor.Able(elector))
//	http.Handle("/leaderz", monitor.Leading(elector))
//
// All of it is local knowledge, asked of the elector and its clocks at the request:
// a process that was paused does not say that it leads. Nothing blocks on etcd. The
// probes answer GET and HEAD with 200 or 503 and one line that says why.
//
// # JSON
//
// One object. Members may be added; none is renamed or removed. Instants are RFC
// 3339, durations are seconds as numbers, lists are never null.
//
//	time         of the answer, by this process's clock, as all instants but one
//	identity     of this process; absent if it has none
//	election     its key
//	state        idle, vacant, led, leading, unreachable or rolled back
//	since        when that began
//	seen         when etcd was heard last; null while it is not asked
//	ttl_seconds  that etcd has granted; 0: no lease
//	error        the last trouble; absent: none
//	overstayed   the work of a term has not stopped in time
//	leader       the last one known, or null: identity, address, metadata, epoch,
//	             acquired (by the leader's clock), evicting
//	term         this process's, or null: epoch, left_seconds until it ends unless it
//	             is renewed, stopping
//	renewals     the last ten: at, latency_seconds, counted, and else error
//	terms        the last ten of this process: epoch, started, ended or null, and
//	             then reason, and cause if that has details
//	changes      the last ten of state or leader: at, state, identity, epoch
//	refusals     by a fence: count, and the last or null
//
// Lists have the newest first. The lease of a term is not told, so that nobody
// learns a fence here.
package statushttp
