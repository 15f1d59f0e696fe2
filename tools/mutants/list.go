package main

// mutants is the list. Each is a mistake that somebody could make, most of them
// ones that other libraries have made.
var mutants = []mutant{
	// The trust window.
	{
		"deadline counted from the answer", "lease.go",
		"return l.extend(gen, sent.add(", "return l.extend(gen, l.clocks().add(",
		"TestDeadlineCountsFromTheSend|TestTermEndsBeforeTheKeyVanishes",
	},
	{
		"margin dropped", "lease.go",
		"gen.ttl)-gen.margin))", "gen.ttl)))",
		"TestMarginAndGrantedTTL|TestTermEndsBeforeTheKeyVanishes",
	},
	{
		"deadline counted from the answer, in real time", "lease.go",
		"return l.extend(gen, sent.add(", "return l.extend(gen, l.clocks().add(",
		cut,
	},
	{
		"margin of the grant dropped", "lease.go",
		"limit := sent.add(gen.ttl - gen.margin)", "limit := sent.add(gen.ttl)",
		"TestMarginAndGrantedTTL",
	},
	{
		"wished TTL counts, not the granted one", "lease.go",
		"ttl: time.Duration(resp.TTL) * time.Second, margin", "ttl: l.ttl, margin",
		"TestMarginAndGrantedTTL",
	},
	{
		"wall clock ignored", "clock.go",
		"i.mono.Before(limit.mono) && i.wall.Before(limit.wall)", "i.mono.Before(limit.mono)",
		"TestWallClockStepForward|TestSleepOfTheMachineEndsTheTerm",
	},
	{
		"monotonic clock ignored", "clock.go",
		"i.mono.Before(limit.mono) && i.wall.Before(limit.wall)", "i.wall.Before(limit.wall)",
		"TestWallClockSetBackNeitherExtendsNorEndsTheTerm|TestLaterClockCounts|TestInstantLaws",
	},
	{
		"validity is a flag that a goroutine sets", "term.go",
		"return now.before(t.limit()) && ", "return ",
		"TestValidAt|TestTermIsValidBeforeItsLimit|TestSleepOfTheMachineEndsTheTerm",
	},
	{
		"read after the renewal dropped", "lease.go",
		"raftTerm, err := l.readKeys(ctx, attempt(gen, l.clocks()))", "raftTerm, err := ack.Header.RaftTerm, error(nil)",
		"TestOnlyConfirmedRenewalsCount",
	},
	{
		"Raft term not compared", "lease.go",
		"if raftTerm != ack.Header.RaftTerm {", "if false {",
		"TestOnlyConfirmedRenewalsCount",
	},
	{
		"falsified TTL believed", "lease.go",
		"min(time.Duration(ack.TTL)*time.Second, gen.ttl)", "time.Duration(ack.TTL)*time.Second",
		"TestFalsifiedTTLDoesNotExtendTheTerm",
	},
	{
		"unknown lease taken for renewed", "lease.go",
		"if ack.TTL <= 0 {", "if false {",
		"TestRenewalOfAnUnknownLeaseEndsTheTermAtOnce",
	},
	{
		"expired lease extended", "lease.go",
		"if gen.dead || gen.left(l.clocks()) <= 0", "if false",
		"TestLeaseIsNotRenewedAfterItsLimit|TestValidIsNeverTrueAgain|TestWallClockStepForward",
	},
	{
		"stream kept after an attempt without an answer", "lease.go",
		"\tif r.cancel != nil {\n\t\tr.cancel()\n\t}\n\tr.stream, r.cancel = nil, nil", "",
		"TestAnswerOfAnAbandonedAttemptIsNotTakenForAnothers|TestAttemptsAreBoundedAndOneAtATime|TestTermSurvivesAnEndpointThatHangs",
	},

	// Acquiring and cleaning up.
	{
		"compare dropped from the create", "session.go",
		`If(clientv3.Compare(clientv3.CreateRevision(v.key), "=", 0)).`, `If().`,
		"TestContest|TestAcquireLeadsOrLeavesNothing|TestNeverTwoValidTerms",
	},
	{
		"identity instead of candidate id", "session.go",
		"decodeRecord(kv.Value).Candidate == c.record.Candidate", "decodeRecord(kv.Value).Identity == c.record.Identity",
		"TestRestartedProcessIsNotItsPredecessor",
	},
	{
		"clean-up debt forgotten", "lease.go",
		"l.debts.Go(func() { l.sweep(gen, v) })", "",
		"TestLatePutDoesNotStay|TestCancelledCampaignLeavesNothing",
	},
	{
		"remaining validity not looked at after winning", "session.go",
		"if int64(gen.id) != kv.Lease || l.fresh(ctx, gen) != nil {", "if int64(gen.id) != kv.Lease {",
		"TestLateWinIsReportedOnlyWithTimeLeft|TestTermBeginsWithTimeLeft",
	},
	{
		"epoch not compared with the floor", "session.go",
		"if floor := e.floor(); epoch <= floor {", "if floor := e.floor(); false {",
		"TestEpochIsAboveMinEpoch|TestRestoredEtcdDoesNotRepeatEpochs",
	},
	{
		"resign under no condition", "lease.go",
		"If(fence.guard()...).\n\t\tThen(del...).", "If().\n\t\tThen(del...).",
		"TestResignSparesTheSuccessor|TestARepeatedResignLeavesTheSuccessorAlone",
	},
	{
		"no cool-down after resigning", "elector.go",
		"if e.highest > e.cool.epoch {", "if true {",
		"TestCoolDown|TestWhoLetGoLetsTheOtherWin",
	},

	// Watching.
	{
		"watch from the wrong revision", "view.go",
		"w, from := v.using, v.rev.Load()+1", "w, from := v.using, v.rev.Load()+2",
		"TestKeyDeletedBeforeTheWatchIsOpen|TestFollowerNeverHangs",
	},
	{
		"own key not watched", "session.go",
		"\tcase kv == nil:\n\t\tt.end(KeyDeleted)", "\tcase kv == nil:",
		"TestHolderNotices|TestRevokedLeaseIsNoticedByTheWatch",
	},
	{
		"only deletions looked at", "session.go",
		"case clientv3.LeaseID(kv.Lease) != t.fence.Lease:\n\t\t// Without", "case false:\n\t\t// Without",
		"TestHolderNotices",
	},
	{
		"a deaf watch is trusted", "lease.go",
		"\t\tv.deliver(reading{", "\t\t_, _ = v, (reading{",
		"TestFollowerNeverHangs|TestHolderNotices",
	},
	{
		"restore with a bump not noticed", "view.go",
		"v.rolledBack || kv.CreateRevision < v.created", "v.rolledBack",
		"TestObserveBumpedRestore",
	},
	{
		"roll-back of etcd not noticed", "view.go",
		"back := r.rev < r.floor ||", "back := false &&",
		"TestRestoredToAnOlderRevision|TestObserveRolledBack",
	},

	// The end of a term.
	{
		"release before the work stops", "elector.go",
		"\terr = work(term.Context(), term)\n", "\tdefer context.AfterFunc(term.Context(), func() { _ = term.Resign() })()\n\terr = work(term.Context(), term)\n",
		"TestLeaseIsRenewedWhileWorkDrains|TestSuccessorWritesOnlyAfterLastWriteOfPredecessor",
	},
	{
		"new term before the old function returned", "elector.go",
		"\terr = work(term.Context(), term)\n", "\treturned := make(chan error, 1)\n\tgo func() { returned <- work(term.Context(), term) }()\n\tselect {\n\tcase err = <-returned:\n\tcase <-term.life.Done():\n\t}\n",
		"TestNextTermBeginsOnlyAfterWorkHasReturned",
	},
	{
		"no verification when the work returns", "elector.go",
		"if lost := term.Verify(context.WithoutCancel(ctx)); lost != nil {", "if lost := error(nil); lost != nil {",
		"TestRunVerifiesWhenWorkReturns",
	},
	{
		"validity ends after the delete", "term.go",
		"\tt.end(context.Cause(t.ctx))\n\terr := t.giveUp()", "\terr := t.giveUp()\n\tt.end(context.Cause(t.ctx))",
		"TestResignHandsOver|TestNeverTwoValidTerms|TestResignSurvivesFaults",
	},
	{
		"renewals go on past StopTimeout", "term.go",
		"\t\tt.seat.abandon(t)", "",
		"TestTermOfOverstayingWorkRunsOut",
	},

	// The fence.
	{
		"fence read and not locked", "fencesql/table.go",
		"if err != nil || have != fence {", "if true {",
		"TestFenceBroughtMeanwhileIsLocked",
	},
	{
		"lease not compared", "fence.go",
		"\n\t\tclientv3.Compare(clientv3.LeaseValue(f.Key), \"=\", f.Lease),", "",
		"TestTheSameEpochOnAnotherLeaseIsFenced",
	},
	{
		"epoch not compared", "fence.go",
		"\n\t\tclientv3.Compare(clientv3.CreateRevision(f.Key), \"=\", int64(f.Epoch)),", "",
		"TestTermsOnOneLeaseDifferByTheirEpoch",
	},
	{
		"epoch 0 accepted", "fence.go",
		"case f.Epoch < 1:", "case false:",
		"TestAnInvalidFenceSendsNothing",
	},
	{
		"else-branch unguarded", "kv.go",
		"Then(op).Else(g.look).Commit()", "Then(op).Else(append([]clientv3.Op{g.look}, func() []clientv3.Op { _, _, e := op.Txn(); return e }()...)...).Commit()",
		"TestGuardAndConditionGiveFourOutcomes",
	},
	{
		"write to the election's key let through", "kv.go",
		"\tif hit {", "\tif hit && false {",
		"TestWritesThatCoverTheElectionsKeyAreRefused",
	},
	{
		"local loss not looked at", "term.go",
		"(t.fence, kv, t.Err,", "(t.fence, kv, t.fence.Validate,",
		"TestTermKVRefusesAfterALocalLoss",
	},
	{
		"unknown outcome taken for a failure", "kv.go",
		"case ambiguous(err):", "case false:",
		"TestAMissingAnswerIsAnUnknownOutcome",
	},
	{
		"gate that checks and then lets go", "gate.go",
		"\t\tif !g.olderInsideLocked() {\n\t\t\tbreak\n\t\t}", "\t\tif true {\n\t\t\tbreak\n\t\t}",
		"TestGateWaitsForTheOlderTermToLeave|TestGateNeverHoldsTwoTermsAtOnce",
	},
	{
		"gate forgets the lease", "epoch.go",
		"case got.Epoch == have.Epoch && got.Lease == have.Lease:", "case got.Epoch == have.Epoch:",
		"TestGateRefusesWhatIsNotLaterAndNotTheSameTerm",
	},
	{
		"twin of a repeated put forgotten", "session.go",
		"\tif failed.Load() {", "\tif failed.Load() && false {",
		"TestTwinOfThePutDoesNotStay",
	},
	{
		"cool-down kept after a brief term", "session.go",
		"\t\t\te.warm() // somebody", "\t\t\t// somebody",
		"TestCoolDownEndsWithABriefTerm",
	},
	{
		"late read brings a resigned key back", "view.go",
		"{ v.set(nil, max(v.rev.Load(), rev)) }", "{ v.set(nil, v.rev.Load()) }",
		"TestLateReadDoesNotEndTheCoolDown",
	},
	{
		"process ended before the hooks have run", "term.go",
		"\t\tcase <-t.events.drained():\n", "\t\tdefault:\n",
		"TestExitOnStopTimeoutEndsProcess",
	},
	{
		"work on a goroutine of its own", "elector.go",
		"\terr = work(term.Context(), term)\n",
		"\tch := make(chan error, 1)\n\tgo func() { ch <- work(term.Context(), term) }()\n\terr = <-ch\n",
		"TestNextTermBeginsOnlyAfterWorkHasReturned",
	},
	{
		"next term before the work has returned", "elector.go",
		"\terr = work(term.Context(), term)\n",
		"\tch := make(chan error, 1)\n\tgo func() { ch <- work(term.Context(), term) }()\n\tselect {\n\tcase err = <-ch:\n\tcase <-term.life.Done():\n\t}\n",
		"TestNextTermBeginsOnlyAfterWorkHasReturned",
	},
	{
		"renewals stop when the context ends", "term.go",
		"\tdefer t.mu.Unlock()\n\tt.stopLocked(cause)\n",
		"\tdefer t.mu.Unlock()\n\tt.stopLocked(cause)\n\tt.seat.abandon(t)\n",
		"TestLeaseIsRenewedWhileWorkDrains",
	},
	{
		"validity ends with the context", "term.go",
		"\tdefer t.mu.Unlock()\n\tt.stopLocked(cause)\n",
		"\tdefer t.mu.Unlock()\n\tt.stopLocked(cause)\n\tt.over.Store(true)\n",
		"TestLeaseIsRenewedWhileWorkDrains",
	},
	{
		"key given up before the work has returned", "elector.go",
		"\terr = work(term.Context(), term)\n",
		"\tcontext.AfterFunc(term.Context(), func() { _ = term.Resign() })\n\terr = work(term.Context(), term)\n",
		"TestSuccessorWritesOnlyAfterLastWriteOfPredecessor",
	},
	{
		"no question to etcd when the work has returned", "elector.go",
		"term.Verify(context.WithoutCancel(ctx)); lost",
		"term.Err(); lost",
		"TestRunVerifiesWhenWorkReturns",
	},
	{
		"cause instead of error of the context", "elector.go",
		"\tterm.stopped()\n\tif ctx.Err() != nil {\n\t\treturn false, ctx.Err()\n\t}\n",
		"\tterm.stopped()\n\tif ctx.Err() != nil {\n\t\treturn false, context.Cause(ctx)\n\t}\n",
		"TestRunReturnsErrorOfItsContext",
	},
	{
		"error of the work instead of that of the context", "elector.go",
		"\tterm.stopped()\n\tif ctx.Err() != nil {\n\t\treturn false, ctx.Err()\n\t}\n",
		"\tterm.stopped()\n\tif ctx.Err() != nil {\n\t\treturn false, err\n\t}\n",
		"TestRunReturnsErrorOfItsContext",
	},
	{
		"no resign after a panic", "elector.go",
		"if resignErr := term.Resign(); resignErr != nil {",
		"if resignErr := error(nil); resignErr != nil {",
		"TestWorkThatDoesNotReturnGivesUpTheKey",
	},
	{
		"no cool-down after letting go", "elector.go",
		"until: time.Now().Add(t.gen.ttl / 3)",
		"until: time.Now()",
		"TestRunCampaignsAgainAfterWorkHasResigned",
	},
	{
		"private lease renewed after StopTimeout", "session.go",
		"\tif alone {\n\t\tt.gen.end()\n\t\treturn\n\t}\n",
		"\tif alone {\n\t\treturn\n\t}\n",
		"TestTermOfOverstayingWorkRunsOut",
	},
	{
		"limit not frozen on a shared lease after StopTimeout", "session.go",
		"\tt.frozen.Store(limit)\n",
		"",
		"TestTermOfOverstayingWorkRunsOut",
	},
	{
		"key deleted a margin too early after StopTimeout", "session.go",
		"l.clocks().mono) + t.gen.margin)",
		"l.clocks().mono))",
		"TestTermOfOverstayingWorkRunsOut",
	},
	{
		"overstaying reported again and again", "term.go",
		"\tif !t.over.Load() {\n\t\tt.seat.abandon(t)\n\t}\n",
		"\tif !t.over.Load() {\n\t\tt.seat.abandon(t)\n\t\tt.overstay.Reset(t.opts.StopTimeout)\n\t}\n",
		"TestTermOfOverstayingWorkRunsOut",
	},
	{
		"no exit on StopTimeout", "term.go",
		"\t\tos.Exit(1)\n",
		"\t\tos.Getpid()\n",
		"TestExitOnStopTimeoutEndsProcess",
	},
	{
		"two campaigns of one elector at once", "elector.go",
		"\tif e.busy {",
		"\tif false {",
		"TestSecondCampaignBesideTheFirstIsRefused",
	},
	{
		"campaign's context ends the term", "elector.go",
		"context.WithCancelCause(context.WithoutCancel(ctx))",
		"context.WithCancelCause(ctx)",
		"TestContextOfCampaignDoesNotBoundTerm",
	},
	{
		"values of the caller's context lost", "elector.go",
		"context.WithCancelCause(context.WithoutCancel(ctx))",
		"context.WithCancelCause(context.Background())",
		"TestContextOfCampaignDoesNotBoundTerm",
	},
	{
		"Run ends with the first loss", "elector.go",
		"; !again {\n\t\t\treturn err",
		"; !again || true {\n\t\t\treturn err",
		"TestRunLeadsAgainAfterOutage",
	},
	{
		"failed precondition taken for hopeless", "errors.go",
		"case c == codes.PermissionDenied, c",
		"case c == codes.PermissionDenied, c == codes.FailedPrecondition, c",
		"TestRunSurvivesErrorsThatHeal|TestErrorsOfEtcdAreClassified",
	},
	{
		"attempts do not back off", "view.go",
		"maxBackoff     = 2 * time.Second",
		"maxBackoff     = 50 * time.Millisecond",
		"TestAttemptsBackOff",
	},
	{
		"permission denied taken for healing", "errors.go",
		"case c == codes.PermissionDenied, c",
		"case c",
		"TestRunEndsWithErrorsThatCannotHeal|TestErrorsOfEtcdAreClassified",
	},
	{
		"follower does not hear of a forbidden key", "lease.go",
		"\t\t\tv.doubt()\n",
		"\t\t\t_ = v\n",
		"TestRunEndsWithErrorsThatCannotHeal",
	},
	{
		"closed client not named", "session.go",
		"if ctx.Err() == nil && s.l.client.Ctx().Err() != nil {",
		"if false {",
		"TestRunEndsWithErrorsThatCannotHeal",
	},
	{
		"one forbidden key refuses the shared lease", "lease.go",
		"\tif err != nil && permanent(l.client, err) {",
		"\tif false {",
		"TestRunEndsWithErrorsThatCannotHeal",
	},
	{
		"campaign does not say what was in its way", "session.go",
		"return nil, ended(ctx, s.trouble())",
		"return nil, ctx.Err()",
		"TestCampaignSaysWhyNothingWasHeard",
	},
	{
		"requests take longer than promised", "view.go",
		"requestTimeout = 3 * time.Second",
		"requestTimeout = 6 * time.Second",
		"TestEveryCallReturnsWithinItsBound",
	},
	{
		"orderly end longer than a short TTL", "lease.go",
		"return min(l.ttl/2, time.Second)",
		"return time.Second",
		"TestEveryCallReturnsWithinItsBound",
	},
	{
		"evicted and context ended reported as resigned", "term.go",
		"t.end(context.Cause(t.ctx))",
		"t.end(Resigned)",
		"TestEveryReasonReachesContextTermAndHook|TestEveryReasonIsTermEnded",
	},
	{
		"refused renewal reported as expiry", "lease.go",
		"l.kill(gen, RenewalRefused.because(err))",
		"l.kill(gen, LeaseExpired.because(err))",
		"TestEveryReasonReachesContextTermAndHook|TestEveryReasonIsTermEnded",
	},
	{
		"refusal of the fence does not end the term", "term.go",
		"t.Err, func() { t.end(Fenced) })",
		"t.Err, func() {})",
		"TestEveryReasonReachesContextTermAndHook|TestEveryReasonIsTermEnded",
	},
	{
		"term ends twice", "term.go",
		"\tif t.over.Load() {\n\t\tt.mu.Unlock()\n\t\treturn\n\t}\n",
		"",
		"TestTermHooksArePairedAndInOrder",
	},
	{
		"Run does not wait for hooks", "elector.go",
		"\tdefer e.events.wait()\n",
		"",
		"TestBlockingHookHoldsUpOnlyHooks",
	},
	{
		"hooks on the goroutine that renews", "queue.go",
		"\tq.pending = append(q.pending, f)\n",
		"\tf()\n\treturn\n\tq.pending = append(q.pending, f)\n",
		"TestBlockingHookHoldsUpOnlyHooks",
	},
	{
		"Renewed beside the other hooks", "elector.go",
		"\t\te.lease.events = &e.events\n",
		"",
		"TestBlockingHookHoldsUpOnlyHooks",
	},
	{
		"states repeated", "observe.go",
		"\tif st.same(old) {\n\t\treturn\n\t}\n",
		"",
		"TestStateChangedTellsEveryState",
	},
	{
		"failed renewal reported as good", "lease.go",
		"hook(latency, err)",
		"hook(latency, nil)",
		"TestRenewedTellsLatencyAndOutcome",
	},
	{
		"TTL bound", "options.go",
		"ttl < minTTL",
		"ttl <= minTTL",
		"TestOptionsAreCheckedAtTheirBounds",
	},
	{
		"largest TTL bound", "options.go",
		"ttl > maxTTL",
		"ttl >= maxTTL",
		"TestOptionsAreCheckedAtTheirBounds",
	},
	{
		"margin bound", "options.go",
		"margin < time.Millisecond",
		"margin <= time.Millisecond",
		"TestOptionsAreCheckedAtTheirBounds",
	},
	{
		"largest margin bound", "options.go",
		"margin > ttl/2",
		"margin >= ttl/2",
		"TestOptionsAreCheckedAtTheirBounds",
	},
	{
		"StopTimeout bound", "options.go",
		"o.StopTimeout < time.Millisecond",
		"o.StopTimeout <= time.Millisecond",
		"TestOptionsAreCheckedAtTheirBounds",
	},
	{
		"MinEpoch bound", "options.go",
		"o.MinEpoch < 0",
		"o.MinEpoch <= 0",
		"TestOptionsAreCheckedAtTheirBounds",
	},
	{
		"lease of another client", "options.go",
		"if o.Lease.client != client",
		"if false",
		"TestOptionsAreCheckedAtTheirBounds",
	},
	{
		"caller's metadata kept", "options.go",
		"c.Metadata = maps.Clone(c.Metadata)",
		"_ = maps.Clone(c.Metadata)",
		"TestOptionsAreCopied",
	},
	{
		"default identity not unique", "options.go",
		"rand.Text()[:8])",
		"\"xxxxxxxx\")",
		"TestDefaultIdentityIsUnique",
	},
	{
		"record bound", "options.go",
		"n > maxRecordBytes",
		"n > maxRecordBytes+20",
		"TestRecordIsBounded|TestEveryFaultIsReportedAtOnce",
	},
	{
		"client without a connection", "lease.go",
		"client == nil || client.ActiveConnection() == nil",
		"client == nil",
		"TestClientWithoutConnectionIsRefused",
	},
	{
		"default margin", "lease.go",
		"gen.margin = gen.ttl / marginShare",
		"gen.margin = gen.ttl / 11",
		"TestExtremeOptionsLead|TestNilOptionsAreValid",
	},
	{
		"answer too large taken for a refusal", "errors.go",
		"return !errors.Is(err, rpctypes.ErrTooManyRequests)",
		"return false",
		"TestErrorsOfEtcdAreClassified",
	},
	{
		"wrong password taken for healing", "errors.go",
		"errors.Is(err, rpctypes.ErrAuthFailed), ",
		"",
		"TestErrorsOfEtcdAreClassified",
	},
	{
		"reason is no ErrTermEnded", "errors.go",
		"return target == ErrTermEnded",
		"return false",
		"TestEveryReasonIsTermEnded",
	},
	{
		"closed client taken for healing", "errors.go",
		"return client.Ctx().Err() != nil",
		"return false",
		"TestErrorsOfEtcdAreClassified",
	},
	{
		"ErrHeld hidden", "errors.go",
		"func (e *leaderError) Unwrap() error { return e.err }",
		"func (e *leaderError) Unwrap() error { return nil }",
		"TestLeaderOfNamesTheLeader",
	},
	{
		"code of etcd errors unknown", "internal/code/code.go",
		"errors.AsType[rpctypes.EtcdError](err); ok {", "errors.AsType[rpctypes.EtcdError](err); ok && false {",
		"TestOf",
	},
	{
		"dependency added", "epoch.go",
		"package tenure\n",
		"package tenure\n\nimport _ \"go.uber.org/goleak\"\n",
		"TestLibraryBringsNoDependencyOfItsOwn",
	},
	{
		"harness in the library", "solo.go",
		"import (\n",
		"import (\n\t_ \"github.com/tenure-go/tenure/internal/etcdtest\"\n",
		"TestLibraryBringsNoDependencyOfItsOwn",
	},
	{
		"key deleted before the validity ends", "term.go",
		"\tt.end(context.Cause(t.ctx))\n\terr := t.giveUp()\n",
		"\terr := t.giveUp()\n\tt.end(context.Cause(t.ctx))\n",
		"TestNeverTwoValidTerms",
	},
	{
		"fence guards nothing", "fence.go",
		"clientv3.Compare(clientv3.CreateRevision(f.Key), \"=\", int64(f.Epoch)),\n\t\tclientv3.Compare(clientv3.LeaseValue(f.Key), \"=\", f.Lease),\n",
		"clientv3.Compare(clientv3.CreateRevision(f.Key), \">\", 0),\n",
		"TestNeverTwoValidTerms",
	},
}
