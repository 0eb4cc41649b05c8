//! Contributions that are bounded before they are averaged.

use super::Communicator;
use crate::{Call, Clip, ClipReport, Error, LaunchOptions, Target};
use pccl_quant::Element;

impl Communicator {
    /// Bounds the Euclidean norm of `data` by `factor` times the median of the norms of all peers of the group, before
    /// an average: what is beyond that is multiplied by the one number that takes it there, what is not stays as it is,
    /// byte by byte. All peers call it with the same factor and tag, a finite number above 0, such as 3. Floats only.
    /// `docs/semantics/results.md` has the exact rule.
    ///
    /// It is a collective of its own, which moves 32 bytes of each peer. Its result says who was clipped. Against peers
    /// that lie about their norm it is no protection: each of them clips its own contribution.
    ///
    /// ```no_run
    /// # let comm = pccl::Communicator::builder("127.0.0.1:48148").build()?;
    /// let mut gradient = vec![0.5_f32; 1000];
    /// for outlier in comm.clip_to_median(&mut gradient, 3.0, ())?.outliers() {
    ///     println!("{} would have given a gradient of {}", outlier.peer, outlier.norm);
    /// }
    /// comm.all_reduce(&mut gradient, pccl::ReduceOp::Avg)?;
    /// # Ok::<(), pccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::call`]; after any, `data` is as before. `Aborted` with the cause `NotFinite` on all peers if
    /// an element of anybody is NaN or an infinity; the verdict names all who give such values. `InvalidArgument` for a
    /// factor that is none, for elements that are no floats, and, on all peers, for factors that differ.
    pub fn clip_to_median<T: Element>(
        &self,
        data: &mut [T],
        factor: f64,
        options: impl Into<LaunchOptions>,
    ) -> Result<Clip, Error> {
        self.clip_many_to_median(vec![Target::from(data)], factor, options)
    }

    /// As [`Communicator::clip_to_median`], with one norm over all elements of several tensors, of any float types.
    ///
    /// # Errors
    /// As [`Communicator::clip_to_median`].
    pub fn clip_many_to_median<'a>(
        &self,
        tensors: impl Into<Vec<Target<'a>>>,
        factor: f64,
        options: impl Into<LaunchOptions>,
    ) -> Result<Clip, Error> {
        let report = ClipReport::default();
        self.call(Call::clip_to_median(tensors, factor, &report), options)?;
        report.take().ok_or_else(|| Error::System("a clip has found nothing".to_owned().into()))
    }
}
