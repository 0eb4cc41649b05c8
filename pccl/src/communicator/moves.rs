//! Collectives that only move: gather, scatter, all-to-all.

use super::Communicator;
use crate::{Call, CollectiveOptions, Error, LaunchOptions, ReduceInfo, Report, Root};
use pccl_quant::Element;

impl Communicator {
    /// Puts what all peers of the group send into `recv` at `root`, in the order of the ranks that they have when it
    /// begins: as many elements of each, so that `recv` has those of all. The others have no use for `recv`, which may
    /// be empty there.
    ///
    /// ```no_run
    /// # let comm = pccl::Communicator::builder("127.0.0.1:48148").build()?;
    /// let world = comm.world();
    /// let mut losses = vec![0.0_f32; if world.rank == 0 { world.group_size } else { 0 }];
    /// comm.gather(&[0.25_f32], &mut losses, 0, ())?;
    /// # Ok::<(), pccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::call`]; after any, `send` is as before and `recv` is undefined. `InvalidArgument` if there is
    /// no such rank, if `recv` of the root does not have the elements of all, and for a quantisation.
    pub fn gather<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        root: impl Into<Root>,
        options: impl Into<CollectiveOptions>,
    ) -> Result<ReduceInfo, Error> {
        let options = options.into();
        self.call(Call::gather(send, recv, root).quantised(options.quantisation), options)
    }

    /// As [`Communicator::gather`], with as many elements of each rank of [`Communicator::world`] as `counts` says. All
    /// peers give the same counts.
    ///
    /// # Errors
    /// As [`Communicator::gather`]; `InvalidArgument` if the counts do not fit the world or the buffers.
    pub fn gather_counts<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        counts: &[u64],
        root: impl Into<Root>,
        options: impl Into<CollectiveOptions>,
    ) -> Result<ReduceInfo, Error> {
        let options = options.into();
        self.call(Call::gather_counts(send, recv, counts, root).quantised(options.quantisation), options)
    }

    /// Gives each peer of the group an equal part of what `root` sends, in the order of the ranks that they have when
    /// it begins: as many elements as `recv` has. The others have no use for `send`, which may be empty there.
    ///
    /// ```no_run
    /// # let comm = pccl::Communicator::builder("127.0.0.1:48148").build()?;
    /// let world = comm.world();
    /// let batch = vec![0.5_f32; if world.rank == 0 { 32 * world.group_size } else { 0 }];
    /// let mut part = [0.0_f32; 32];
    /// comm.scatter(&batch, &mut part, 0, ())?;
    /// # Ok::<(), pccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::call`]; after any, `send` is as before and `recv` is undefined. `InvalidArgument` if there is
    /// no such rank, if `send` of the root does not have the elements of all, and for a quantisation.
    pub fn scatter<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        root: impl Into<Root>,
        options: impl Into<CollectiveOptions>,
    ) -> Result<ReduceInfo, Error> {
        let options = options.into();
        self.call(Call::scatter(send, recv, root).quantised(options.quantisation), options)
    }

    /// As [`Communicator::scatter`], with as many elements for each rank of [`Communicator::world`] as `counts` says.
    /// All peers give the same counts.
    ///
    /// # Errors
    /// As [`Communicator::scatter`]; `InvalidArgument` if the counts do not fit the world or the buffers.
    pub fn scatter_counts<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        counts: &[u64],
        root: impl Into<Root>,
        options: impl Into<CollectiveOptions>,
    ) -> Result<ReduceInfo, Error> {
        let options = options.into();
        self.call(Call::scatter_counts(send, recv, counts, root).quantised(options.quantisation), options)
    }

    /// Gives each peer of the group an equal part of `send`, and puts what all of them give this one into `recv`, both
    /// in the order of the ranks that they have when it begins. Both have as many elements, on all peers.
    ///
    /// ```no_run
    /// # let comm = pccl::Communicator::builder("127.0.0.1:48148").build()?;
    /// let tokens = vec![7_i64; 16 * comm.world().group_size];
    /// let mut mine = vec![0_i64; tokens.len()];
    /// comm.all_to_all(&tokens, &mut mine, ())?;
    /// # Ok::<(), pccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::call`]; after any, `send` is as before and `recv` is undefined. `InvalidArgument` if the two
    /// differ in length or are no equal part for each rank, and for a quantisation.
    pub fn all_to_all<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        options: impl Into<CollectiveOptions>,
    ) -> Result<ReduceInfo, Error> {
        let options = options.into();
        self.call(Call::all_to_all(send, recv).quantised(options.quantisation), options)
    }

    /// As [`Communicator::all_to_all`], with parts that are not equal: `counts` has, for each rank of
    /// [`Communicator::world`], the numbers of elements that it gives rank 0, rank 1, and so on. All peers give the
    /// same counts; those that know their own only call [`Communicator::exchange_counts`] first.
    ///
    /// # Errors
    /// As [`Communicator::all_to_all`]; `InvalidArgument` if the counts do not fit the world or the buffers.
    pub fn all_to_all_counts<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        counts: &[u64],
        options: impl Into<CollectiveOptions>,
    ) -> Result<ReduceInfo, Error> {
        let options = options.into();
        self.call(Call::all_to_all_counts(send, recv, counts).quantised(options.quantisation), options)
    }

    /// Before an all-to-all whose parts are not equal: says that this peer gives each rank of [`Communicator::world`]
    /// as many elements as `send_counts` says, and takes as many of each as `recv_counts` says. It is a collective of
    /// its own, whose result is what [`Communicator::all_to_all_counts`] wants.
    ///
    /// ```no_run
    /// # let comm = pccl::Communicator::builder("127.0.0.1:48148").build()?;
    /// // Of two ranks, each gives the other one 3 elements, and keeps 1.
    /// let own = if comm.world().rank == 0 { [1, 3] } else { [3, 1] };
    /// let counts = comm.exchange_counts(&own, &own, ())?;
    /// let (tokens, mut mine) = ([7_i64; 4], [0_i64; 4]);
    /// comm.all_to_all_counts(&tokens, &mut mine, &counts, ())?;
    /// # Ok::<(), pccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::call`]. `InvalidArgument` if there is not one count for each rank, and, on all peers, if a
    /// rank takes more or less than it is given: the text names both.
    pub fn exchange_counts(
        &self,
        send_counts: &[u64],
        recv_counts: &[u64],
        options: impl Into<LaunchOptions>,
    ) -> Result<Vec<u64>, Error> {
        let report = Report::default();
        self.call(Call::exchange_counts(send_counts, recv_counts, &report), options)?;
        report
            .take()
            .ok_or_else(|| Error::System("counts were exchanged and are not there".to_owned().into()))
    }
}
