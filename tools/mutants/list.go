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
		"Then(op).Else(clientv3.OpGet(g.fence.Key)).Commit()", "Then(op).Else(append([]clientv3.Op{clientv3.OpGet(g.fence.Key)}, func() []clientv3.Op { _, _, e := op.Txn(); return e }()...)...).Commit()",
		"TestGuardAndConditionGiveFourOutcomes",
	},
	{
		"write to the election's key let through", "kv.go",
		"\tif hit {", "\tif hit && false {",
		"TestWritesThatCoverTheElectionsKeyAreRefused",
	},
	{
		"local loss not looked at", "term.go",
		"kv: kv, before: t.Err,", "kv: kv, before: t.fence.Validate,",
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
}
