"""Public training scripts that are run as they are: where each is from, how it is started, what it needs."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Repository(NamedTuple):
    """A public repository, and the commit of it that is run."""

    name: str
    commit: str


class Script(NamedTuple):
    """A training script: its path, and how it is started.

    `tree` is what is taken out of the repository, `place` the directory in it that the script is started in.
    `data` names what is made for it beforehand (tests/public/material.py).
    """

    repository: Repository
    path: str
    arguments: str = ""
    data: tuple[str, ...] = ()
    tree: str = ""
    place: str = ""
    env: tuple[tuple[str, str], ...] = ()
    #: mini-batches compared, and how it saves itself where its ranks do not
    steps: int = 40
    checkpoint: str = ""
    #: #SBATCH lines of a batch script around it; none: it is started by itself
    batch: str = ""

    @property
    def name(self) -> str:
        """What it is called in the table: its owner's repository, and its path."""
        return f"{self.repository.name.split('/')[1]}: {self.path}"

    @property
    def start(self) -> str:
        """The directory that it is started in, below its repository's."""
        return self.place or str(Path(self.path).parent)

    @property
    def file(self) -> str:
        """Its path from there."""
        return str(Path(self.path).relative_to(self.start))


PYTORCH = Repository("pytorch/examples", "77f55b912142e11fcfdf5b530231fb9c52f181e8")
NANOGPT = Repository("karpathy/nanoGPT", "3adf61e154c3fe3fca428ad6bc3818b27a3b8291")
MINGPT = Repository("karpathy/minGPT", "37baab71b9abea1b76ab957409a1cc2fbfba8a26")
MAKEMORE = Repository("karpathy/makemore", "988aa59e4d8fefa526d06f3b453ad116258398d4")
LIGHTNING = Repository("Lightning-AI/pytorch-lightning", "7f0c3436cd3f6ad3753125672024fc415cbcb414")
ACCELERATE = Repository("huggingface/accelerate", "16cb6eb80dd9aa8b4df1a63ef57863e455d53b83")
TRL = Repository("huggingface/trl", "f2cd57710ae345ea6428ae95363267fcf38a3dc8")
TRANSFORMERS = Repository("huggingface/transformers", "ae05b2ae619aa28fdfdcb8244009d585b7e1fed7")
SENTENCE = Repository("huggingface/sentence-transformers", "cad211983f36ce458e9b3360f3e11b29fc54cbd8")

_MOCKED = (("TESTING_MOCKED_DATALOADERS", "1"),)
_TRL = (
    "--model_name_or_path model --output_dir out --use_cpu --per_device_train_batch_size 2 --max_steps 400 "
    "--max_length 64 --bf16 False --gradient_checkpointing False --report_to none --save_strategy no "
    "--dataset_name "
)
_EXAMPLE = (
    "--do_train --output_dir out --use_cpu --per_device_train_batch_size 2 --max_steps 400 --report_to none "
    "--save_strategy no"
)
_BASICS, _FABRIC, _BERT = "examples/pytorch/basics", "examples/fabric", "bert:bert-base-cased:2"
_TEXTS = (("train", 3000), ("valid", 30), ("test", 30))

SCRIPTS = (
    Script(PYTORCH, "mnist/main.py", "--no-accel --batch-size 8", ("mnist:../data:600",)),
    Script(PYTORCH, "mnist_rnn/main.py", "--batch-size 8", ("mnist:../data:600",)),
    Script(PYTORCH, "mnist_forward_forward/main.py", "--no_accel --train_size 100", ("mnist:data:600",)),
    Script(PYTORCH, "siamese_network/main.py", "--no-accel --batch-size 4", ("mnist:../data:600",)),
    Script(PYTORCH, "vae/main.py", "--no-accel --batch-size 8", ("mnist:../data:600",)),
    Script(
        PYTORCH, "dcgan/main.py", "--dataset fake --manualSeed 1 --batchSize 4 --ngf 8 --ndf 8 --workers 0",
    ),
    *(
        Script(
            PYTORCH, "word_language_model/main.py", f"{words}--emsize 20 --nhid 20 --batch_size 4",
            tuple(f"text:data/wikitext-2/{name}.txt:{count}" for name, count in _TEXTS),
            tree=" ".join(f"word_language_model/{name}.py" for name in ("main", "data", "model")),
        )
        for words in ("--use-optimizer ", "--model Transformer --use-optimizer ", "")
    ),
    Script(
        PYTORCH, "time_sequence_prediction/train.py", "", ("sines",),
        env=(("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1"),),
    ),
    Script(PYTORCH, "reinforcement_learning/reinforce.py"),
    Script(PYTORCH, "reinforcement_learning/actor_critic.py"),
    Script(
        PYTORCH, "super_resolution/main.py", "--upscale_factor 3 --batchSize 2 --testBatchSize 2 --nEpochs 9",
        ("images:dataset/BSDS300/images/train:16", "images:dataset/BSDS300/images/test:4"),
    ),
    Script(
        PYTORCH, "imagenet/main.py",
        "imagenet --no-accel --workers 0 --seed 1 -b 2 --resume checkpoint.pth.tar",
        (
            "images:imagenet/train/a:6", "images:imagenet/train/b:6",
            "images:imagenet/val/a:2", "images:imagenet/val/b:2",
        ),
        steps=16, checkpoint="self",
    ),
    Script(
        NANOGPT, "train.py",
        "config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=2 --n_layer=2 --n_head=2 "
        "--n_embd=16 --block_size=16 --batch_size=4 --dropout=0.1",
        ("characters:data/shakespeare_char",), tree=".",
    ),
    Script(MINGPT, "projects/adder/adder.py", "", tree=".", place=".", env=(("PYTHONPATH", "."),)),
    Script(
        MINGPT, "projects/chargpt/chargpt.py",
        "--model.model_type=gpt-nano --trainer.batch_size=4 --trainer.num_workers=0", ("text:input.txt:200",),
        tree=".", place=".", env=(("PYTHONPATH", "."),),
    ),
    Script(MAKEMORE, "makemore.py", "--num-workers 0 --n-layer 1 --n-embd 16"),
    Script(MAKEMORE, "makemore.py", "--num-workers 0 --type gru --n-embd 16"),
    Script(
        LIGHTNING, f"{_BASICS}/transformer.py", "", ("text:data/wikitext-2.txt:20000",),
        steps=30,
    ),
    Script(
        LIGHTNING, f"{_BASICS}/autoencoder.py", "", ("mnist:data:100", "mnist:../../Datasets:60000"),
    ),
    Script(
        LIGHTNING, f"{_BASICS}/backbone_image_classifier.py", "",
        ("mnist:data:100", "mnist:../../Datasets:60000"),
    ),
    Script(
        LIGHTNING, f"{_BASICS}/autoencoder.py", "", ("mnist:data:100", "mnist:Datasets:60000"),
        place="examples", env=(("GANDIVA_AUTO_ATTACH", "0"),), batch="--signal=SIGUSR1@90 --requeue",
    ),
    Script(
        LIGHTNING, f"{_FABRIC}/image_classifier/train_torch.py", "--batch-size 8",
        ("mnist:../../../Datasets:600", "mnist:../../Datasets:600"),
    ),
    Script(
        LIGHTNING, f"{_FABRIC}/image_classifier/train_fabric.py", "--batch-size 8",
        ("mnist:../../../Datasets:600", "mnist:../../Datasets:600"),
    ),
    Script(
        LIGHTNING, f"{_FABRIC}/language_model/train.py", "", ("text:data/wikitext-2.txt:20000",), steps=30,
    ),
    Script(
        ACCELERATE, "examples/by_feature/gradient_accumulation.py", "--cpu --gradient_accumulation_steps 2",
        (_BERT, "metric:glue", "mrpc:tests/test_samples/MRPC"),
        tree="examples/by_feature tests/test_samples", place=".", env=_MOCKED,
    ),
    Script(
        ACCELERATE, "examples/by_feature/checkpointing.py", "--cpu --checkpointing_steps 10",
        (_BERT, "metric:glue", "mrpc:tests/test_samples/MRPC"),
        tree="examples/by_feature tests/test_samples", place=".", env=_MOCKED,
    ),
    Script(
        TRANSFORMERS, "examples/pytorch/language-modeling/run_clm.py",
        f"{_EXAMPLE} --model_name_or_path model --train_file texts.txt --block_size 32",
        ("llama:model:", "text:texts.txt:2000"),
    ),
    Script(
        TRANSFORMERS, "examples/pytorch/language-modeling/run_mlm.py",
        f"{_EXAMPLE} --model_name_or_path bert --train_file texts.txt --max_seq_length 32",
        ("bert:bert:", "text:texts.txt:2000"),
    ),
    Script(
        TRANSFORMERS, "examples/pytorch/text-classification/run_glue.py",
        f"{_EXAMPLE} --model_name_or_path bert --train_file train.csv --validation_file dev.csv "
        "--max_seq_length 32",
        ("bert:bert:2", "metric:accuracy", "mrpc:.:0,1"),
    ),
    Script(
        TRANSFORMERS, "examples/pytorch/text-classification/run_classification.py",
        f"{_EXAMPLE} --model_name_or_path bert --train_file train.csv --validation_file dev.csv "
        "--text_column_names sentence1,sentence2 --max_seq_length 32 --metric_name accuracy",
        ("bert:bert:2", "metric:accuracy", "mrpc:.:0,1"),
    ),
    Script(TRL, "trl/scripts/sft.py", f"{_TRL} texts", ("llama:model:", "table:texts:text")),
    Script(
        TRL, "trl/scripts/dpo.py", f"{_TRL} pairs",
        ("llama:model:", "table:pairs:prompt,chosen,rejected"),
    ),
    Script(
        TRL, "trl/scripts/reward.py", f"{_TRL} pairs", ("llama:model:1", "table:pairs:chosen,rejected"),
    ),
    Script(
        SENTENCE, "examples/sentence_transformer/training/sts/training_stsbenchmark.py", "bert",
        ("bert:bert:", "stsb"),
    ),
)  # fmt: skip
