"""Programs of other people, and what is changed in a copy of each.

``machine`` lets a program run on CPUs, without a network, in a minute; both transports get it. ``pccl`` is what PCCL
needs besides. A replacement is a file, what stands there, and what is put into its place.
"""

import functools
import random
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Dict, List, Tuple

DOCS = Path(__file__).resolve().parents[2] / "docs"
Replacement = Tuple[str, str, str]


@dataclass
class Program:
    """A program, how it is started, and where its losses are."""

    #: The repository on GitHub, and where the program is in it.
    source: str
    script: str
    #: Behind the name of the script; ``{backend}`` is the transport.
    arguments: str = ""
    machine: List[Replacement] = field(default_factory=list)
    pccl: List[Replacement] = field(default_factory=list)
    prepare: Callable[[Path], None] = lambda folder: None
    #: Finds losses in what is printed: all groups but the last are the key.
    losses: str = ""
    #: Finds a step that was made, if that is something else.
    progress: str = ""
    #: Reads the losses from files instead.
    results: Callable[[Path], Dict[str, object]] = None
    #: A kill follows the first line that this matches.
    kill_at: str = ""
    #: The way back: ``restart`` by torchrun, ``resume`` by a second command with ``resume`` as arguments, or
    #: ``replicas``, each with a torchrun of its own, under torchft.
    way: str = "restart"
    resume: str = ""
    #: The last step that is compared, of replicas: they end when all have made it.
    last: int = 0


@functools.lru_cache(maxsize=None)
def pages() -> str:
    """The documents of this repository but for the decisions, which stand for a data set of text. They are read once:
    all runs that are compared get the same, also if somebody edits a document meanwhile."""
    return "\n".join(page.read_text() for page in sorted(DOCS.rglob("*.md")) if "decisions" not in page.parts)


def text(folder: Path) -> None:
    """The documents, for programs that read characters."""
    for name in ("data/shakespeare_char/input.txt", "input.txt"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(pages().encode("ascii", "ignore").decode())


def shakespeare(folder: Path) -> None:
    """The same, as numbers: nanoGPT has a program for that."""
    text(folder)
    subprocess.run([sys.executable, folder / "data/shakespeare_char/prepare.py"], check=True, stdout=subprocess.DEVNULL)


def words(folder: Path) -> None:
    """The same for Lightning, which needs 140,000 words: those that are frequent, three times."""
    lower = pages().lower()
    known = {word for word, count in Counter(lower.split()).items() if count > 100}
    path = folder / "examples/pytorch/basics/data/wikitext-2.txt"
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(" ".join(word if word in known else "<unk>" for word in line.split())
                              for line in lower.splitlines() * 3))


def sentences(folder: Path) -> None:
    """A model of random weights, pairs of sentences, and a metric, where the libraries look before they ask a hub."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    here = folder / "examples"
    known = sorted(set("".join(chr(code) for code in range(97, 123))))
    model = here / "bert-base-cased"
    model.mkdir()
    (model / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *known]))
    BertTokenizerFast(vocab_file=str(model / "vocab.txt")).save_pretrained(model)
    torch.manual_seed(0)
    BertForSequenceClassification(BertConfig(
        vocab_size=len(known) + 5, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=64)).save_pretrained(model)
    data, chance = here / "nyu-mll/glue", random.Random(0)
    data.mkdir(parents=True)
    (data / "README.md").write_text("---\nconfigs:\n- config_name: mrpc\n  data_files:\n  - split: train\n"
                                    "    path: train.csv\n  - split: validation\n    path: validation.csv\n---\n")
    for split, count in (("train", 1024), ("validation", 128)):
        lines = ["sentence1,sentence2,label,idx"]
        for number in range(count):
            one, label = chance.choices(known, k=8), number % 2
            other = one if label else chance.choices(known, k=8)
            lines.append(f"{' '.join(one)},{' '.join(other)},{label},{number}")
        (data / f"{split}.csv").write_text("\n".join(lines) + "\n")
    (here / "glue").mkdir()
    (here / "glue/glue.py").write_text(METRIC)


METRIC = """
import datasets
import evaluate
class Accuracy(evaluate.Metric):
    def _info(self):
        features = datasets.Features({name: datasets.Value("int64") for name in ("predictions", "references")})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=features)
    def _compute(self, predictions, references):
        return {"accuracy": sum(map(int.__eq__, map(int, predictions), map(int, references))) / len(references)}
"""


def snapshot(folder: Path) -> Dict[str, object]:
    """The weights that the tutorial has saved: it prints no loss."""
    import torch

    weights = torch.load(folder / "snapshot.pt", weights_only=True)["MODEL_STATE"]
    return {name: tensor.tolist() for name, tensor in weights.items()}


def metrics(folder: Path) -> Dict[str, object]:
    """All losses of the log of Lightning."""
    import csv

    with (folder / "logs/metrics.csv").open() as file:
        return {f"{name} {row['step']}": row[name] for row in csv.DictReader(file)
                for name in ("train_loss", "val_loss", "test_loss") if row.get(name)}


def tutorial(script: str, rank: str) -> Program:
    """One of the tutorial series: they differ in a name."""
    return Program(
        "pytorch/examples", f"distributed/ddp-tutorial-series/{script}", "13 12",
        machine=[(script, f".to(self.{rank})", ""), (script, f", device_ids=[self.{rank}]", ""),
                 (script, f'f"cuda:{{self.{rank}}}"', '"cpu"'),
                 (script, 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))', "torch.manual_seed(1)"),
                 # Over a single output the cross entropy is 0, whatever the weights are.
                 (script, "F.cross_entropy", "F.mse_loss"), (script, '"nccl"', '"gloo"')],
        pccl=[(script, '"gloo"', '"pccl"')], results=snapshot, progress=r"\[GPU0\] Epoch", kill_at=r"\[GPU0\] Epoch 4 ")


REPLICA = ('\n        torch.distributed.init_process_group("pccl", init_method="pccl://" + os.environ["PCCL"], '
           "enable_reconfigure=True)\n        pg = torch.distributed.group.WORLD\n")

PROGRAMS = {
    "nanogpt": Program(
        "karpathy/nanoGPT", "train.py",
        "config/train_shakespeare_char.py --backend={backend} --device=cpu --compile=False --dtype=float32 --n_layer=3 "
        "--n_head=4 --n_embd=96 --block_size=64 --batch_size=8 --gradient_accumulation_steps=4 --eval_iters=4 "
        "--eval_interval=20 --max_iters=60 --log_interval=1 --warmup_iters=5 --always_save_checkpoint=True",
        machine=[("train.py", "f'cuda:{ddp_local_rank}'", "'cpu'"),
                 ("train.py", "    torch.cuda.set_device(device)\n", ""),
                 ("train.py", "DDP(model, device_ids=[ddp_local_rank])", "DDP(model)")],
        prepare=shakespeare, losses=r"iter (\d+): loss ([\d.]+)", kill_at=r"iter 24: ", way="resume",
        resume="--init_from=resume"),
    "ddp-tutorial": tutorial("multigpu_torchrun.py", "gpu_id"),
    "ddp-multinode": tutorial("multinode.py", "local_rank"),
    "mingpt": Program(
        "pytorch/examples", "distributed/minGPT-ddp/mingpt/main.py",
        "data_config.path=input.txt data_config.block_size=32 data_config.truncate=0.004 gpt_config.n_layer=2 "
        "gpt_config.n_head=2 gpt_config.n_embd=32 +gpt_config.embd_pdrop=0 +gpt_config.resid_pdrop=0 "
        "+gpt_config.attn_pdrop=0 trainer_config.max_epochs=5 trainer_config.batch_size=16 trainer_config.save_every=2 "
        "trainer_config.data_loader_workers=0 trainer_config.use_amp=False",
        machine=[("main.py", "if not verify_min_gpu_count", "if False and not verify_min_gpu_count"),
                 ("main.py", 'torch.device(f"{acc}:{rank}")', 'torch.device("cpu")'),
                 ("main.py", "torch.accelerator.set_device_index(rank)", "torch.manual_seed(1)"),
                 ("trainer.py", 'torch.device(f"{self.acc}:{self.local_rank}")', 'torch.device("cpu")'),
                 ("trainer.py", ".to(self.local_rank)", ""), ("trainer.py", ", device_ids=[self.local_rank]", "")],
        pccl=[("main.py", "init_process_group(backend=backend)", 'init_process_group(backend="pccl")')],
        prepare=lambda folder: text(folder / "distributed/minGPT-ddp/mingpt"),
        losses=r"\[RANK(\d)\] Epoch (\d+) \| Iter (\d+) \| (Train|Eval) Loss ([\d.]+)",
        kill_at=r"\[RANK0\] Epoch 3 \| Iter 0 \| Train"),
    "torchft-ddp": Program(
        "pytorch/torchft", "train_ddp.py",
        machine=[("train_ddp.py", 'datasets.CIFAR10(\n        root="./cifar", train=True, download=True,',
                  "datasets.FakeData(\n        4096, (3, 32, 32), 10,"),
                 ("train_ddp.py", "    m = Net()", "    torch.manual_seed(1)\n    m = Net()"),
                 ("train_ddp.py", "1_000_000_000", "10_000_000"),
                 ("train_ddp.py", "% 100 == 0", "% 5 == 0")],
        pccl=[("train_ddp.py", "\n        pg = ProcessGroupGloo(timeout=timedelta(seconds=5))\n", REPLICA)],
        losses=r"\[(\d+)\] loss = ([\d.]+)", kill_at=r"^\[20\] loss", way="replicas", last=60),
    "torchft-diloco": Program(
        "pytorch/torchft", "train_diloco.py",
        machine=[("train_diloco.py", "    n_layers = 2\n",
                  "    n_layers = 2\n    torch.manual_seed(REPLICA_GROUP_ID)\n"),
                 ("train_diloco.py", "500 * (1 << 20)", "5 * (1 << 20)"), ("train_diloco.py", "% 100 == 0", "% 1 == 0"),
                 ("train_diloco.py", ">= 15", ">= 10000")],
        pccl=[("train_diloco.py", "    pg = (\n        ProcessGroupNCCL(", REPLICA.replace("        ", "    ")[1:]
               + "    _ = (\n        ProcessGroupNCCL("),
              ("train_diloco.py", "else ProcessGroupGloo(timeout=timedelta(seconds=10))", "else None")],
        losses=r"\[(\d+)\] loss = ([\d.]+)", kill_at=r"^\[4\] loss", way="replicas", last=14),
    "accelerate": Program(
        "huggingface/accelerate", "examples/nlp_example.py", "--cpu",
        machine=[("nlp_example.py", "            accelerator.backward(loss)",
                  "            print(f'rank {accelerator.process_index} epoch {epoch} step {step} "
                  "loss {loss.item():.8f}')\n            accelerator.backward(loss)")],
        pccl=[("nlp_example.py", "    accelerator = Accelerator(cpu",
               '    torch.distributed.init_process_group("pccl")\n    accelerator = Accelerator(cpu')],
        prepare=sentences, losses=r"rank (\d) epoch (\d) step (\d+) loss ([\d.]+)", kill_at=r"rank 0 epoch 1 step 9 "),
    "lightning": Program(
        "Lightning-AI/pytorch-lightning", "examples/pytorch/basics/transformer.py",
        machine=[("transformer.py", "max_epochs=20)",
                  'max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", limit_train_batches=40, '
                  'limit_val_batches=4,\n                        limit_test_batches=4, log_every_n_steps=1,\n'
                  '                        logger=L.pytorch.loggers.CSVLogger(".", "logs", ""), callbacks=[\n'
                  '        L.pytorch.callbacks.TQDMProgressBar(),\n'
                  '        L.pytorch.callbacks.ModelCheckpoint("saved", save_last=True, every_n_train_steps=10)])'),
                 ("transformer.py", "train_dataloader, val_dataloader)",
                  'train_dataloader, val_dataloader, ckpt_path="last")')],
        pccl=[("transformer.py", 'strategy="ddp"',
               'strategy=L.pytorch.strategies.DDPStrategy(process_group_backend="pccl")')],
        prepare=words, results=metrics, progress=r"train_loss=", kill_at=r" 2[1-8]/40"),
}
