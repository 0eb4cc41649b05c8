//! A world is made from its seed: who is there, which faults there are, and the choices of each kind.

use super::{Event, Ids, World, options};
use crate::audit::Audit;
use crate::blame::Ledger;
use crate::checker::Checker;
use crate::client::Client;
use crate::log::{Log, Logging};
use crate::rng::Rng;
use crate::swarm::{MS, Model, Swarm};
use pccl_master::state::MasterState;
use pccl_protocol::GroupId;
use std::collections::{BTreeMap, BTreeSet};

/// Processes that nobody can dial: of each group no more than a ring can separate, if there is no relay.
fn hidden_slots(clients: &[Client], (percent, has_relay): (u64, bool), rng: &mut Rng) -> BTreeSet<usize> {
    let mut hidden: BTreeSet<usize> = BTreeSet::new();
    for (slot, client) in clients.iter().enumerate() {
        let of_group = |slot: &&usize| clients[**slot].group == client.group;
        let (all, so_far) = (
            clients.iter().filter(|other| other.group == client.group).count(),
            hidden.iter().filter(of_group).count(),
        );
        if rng.percent(percent) && (has_relay || 2 * (so_far + 1) <= all) {
            hidden.insert(slot);
        }
    }
    hidden
}

impl World {
    /// A world of this seed.
    pub(crate) fn new(seed: u64, model: Model, logging: Logging) -> Self {
        let mut rng = Rng::new(seed);
        let mut swarm = Swarm::new(&mut rng);
        // From numbers of its own, so that the rest of a seed stays as it was.
        let mut of_straggler = Rng::new(seed ^ 0x5eed_0002);
        if of_straggler.percent(30) {
            swarm.straggler = of_straggler.range(5_000 * MS, 15_000 * MS);
        }
        let mut of_strikes = Rng::new(seed ^ 0x5eed_0003);
        if model >= Model::Strikes && of_strikes.percent(75) {
            swarm.extend(&mut of_strikes);
            swarm.inbound_reports = Rng::new(seed ^ 0x5eed_0004).percent(25);
        }
        let mut of_probes = Rng::new(seed ^ 0x5eed_0006);
        if of_probes.percent(40) {
            swarm.optimize_every = of_probes.range(1, 4);
        }
        let mut of_mesh = Rng::new(seed ^ 0x5eed_0008);
        swarm.mesh = model >= Model::Mesh && of_mesh.percent(70);
        swarm.one_host = swarm.mesh && of_mesh.percent(40);
        if swarm.mesh && of_mesh.percent(25) {
            swarm.favour_mesh(&mut of_mesh);
        }
        let mut of_sizes = Rng::new(seed ^ 0x5eed_0009);
        if model >= Model::Large && of_sizes.percent(80) {
            swarm.large = of_sizes.range(20, 100);
        }
        let mut of_limits = Rng::new(seed ^ 0x5eed_000b);
        if model >= Model::Limits && of_limits.percent(40) {
            swarm.limits = of_limits.range(1, 20);
        }
        let mut of_state = Rng::new(seed ^ 0x5eed_000a);
        if model >= Model::State && of_state.percent(35) {
            swarm.state_faults = of_state.range(5, 40);
        }
        let mut of_kinds = Rng::new(seed ^ 0x5eed_000e);
        if model >= Model::Kinds && of_kinds.percent(50) {
            swarm.kinds = of_kinds.range(10, 100);
        }
        let mut of_ahead = Rng::new(seed ^ 0x5eed_000f);
        if model >= Model::Ahead && of_ahead.percent(60) {
            (swarm.lend, swarm.ahead) = (of_ahead.range(20, 100), of_ahead.range(30, 100));
        }
        let mut ends = Rng::new(seed ^ 0x5eed_0010);
        if model >= Model::Away && ends.percent(60) {
            swarm.away = ends.range(20, 100);
        }
        let mut of_turns = Rng::new(seed ^ 0x5eed_000d);
        if of_turns.percent(60) {
            swarm.turn = [200, 5 * MS, 60 * MS][of_turns.below(3) as usize];
        }
        let mut of_outbound = Rng::new(seed ^ 0x5eed_0011);
        swarm.is_tested = model >= Model::Outbound;
        if swarm.is_tested && of_outbound.percent(50) {
            swarm.hidden = of_outbound.range(20, 80);
            swarm.relay = model >= Model::Relay && Rng::new(seed ^ 0x5eed_0012).percent(50);
        }
        let mut of_early = Rng::new(seed ^ 0x5eed_0013);
        if model >= Model::Early && of_early.percent(70) {
            swarm.early = [30, 90, 100][of_early.below(3) as usize];
        }
        let ids = Ids(Rng::new(seed ^ 0x5eed_0001));
        let slowest = swarm.delay.1 + if swarm.spike_percent > 0 { swarm.spike } else { 0 };
        let clients: Vec<Client> =
            (0..swarm.slots).map(|_| Client::new(GroupId(rng.below(swarm.groups) as u32))).collect();
        let hidden = hidden_slots(&clients, (swarm.hidden, swarm.relay), &mut of_outbound);
        let mut world = Self {
            seed,
            now: 1_000 * MS,
            sequence: 0,
            queue: BTreeMap::new(),
            master: MasterState::new(options(&swarm), Box::new(ids)),
            master_busy_until: 0,
            ticks: (0, 0),
            last_master_input: 1_000 * MS,
            master_backlog: Vec::new(),
            backlogs: BTreeMap::new(),
            clients,
            hidden,
            conns: BTreeMap::new(),
            slots: BTreeMap::new(),
            edges_up: BTreeSet::new(),
            blocked: BTreeMap::new(),
            cut: BTreeMap::new(),
            flows: BTreeMap::new(),
            due: BTreeMap::new(),
            owed: BTreeMap::new(),
            started: BTreeSet::new(),
            healing: false,
            checker: Checker::new(swarm.min_world),
            ledger: Ledger::new(slowest),
            audit: Audit::default(),
            log: Log { logging, hash: 0xcbf2_9ce4_8422_2325, lines: 0 },
            unsettled: false,
            turn_ends: 0,
            outbox: Vec::new(),
            inputs: 0,
            optimizations: 0,
            withdrawals: 0,
            wrong_until: 0,
            crossings: 0,
            rings_changed: 0,
            undecided: BTreeMap::new(),
            choices: 0,
            told_ahead: 0,
            held_ahead: 0,
            ahead: of_ahead,
            rng,
            strikes: of_strikes,
            probes: of_probes,
            mesh: of_mesh,
            reach: Rng::new(seed ^ 0x5eed_000c),
            turns: of_turns,
            ends,
            returns: (0, 0),
            recalls: None,
            swarm,
        };
        if logging == Logging::Printed {
            println!("{:?}", world.swarm);
        }
        for slot in 0..world.clients.len() {
            if slot < 2 || world.rng.percent(60) {
                world.start(slot, false);
            }
        }
        world.at(200 * MS, Event::Inject);
        if world.swarm.strike_gap > 0 {
            world.at(300 * MS, Event::Strike);
        }
        world
    }
}
