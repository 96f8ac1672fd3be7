"""Small trainings of frameworks, whose losses are noted and which end where a test says."""

import lightning.pytorch as lightning
import torch
from torch.nn.functional import mse_loss
from torch.utils.data import Dataset

from tests.stopping import Killed

ITEMS, BATCH = 20, 2
#: What a Trainer tells of a training.
LOGGED = ("eval_loss", "loss", "grad_norm", "train_loss")


class Data(Dataset):
    """Its items may have noise, drawn when they are read."""

    def __init__(self, is_noisy):
        self.is_noisy = is_noisy

    def __len__(self):
        return ITEMS

    def __getitem__(self, index):
        x = torch.full((4,), index / ITEMS)
        return {"x": x + torch.rand(4) if self.is_noisy else x, "labels": x[:1]}


class Net(torch.nn.Module):
    """Takes what the Trainer gives."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))

    def forward(self, x, labels):
        return {"loss": mse_loss(self.body(x), labels)}


class Life:
    """One process of a training: it asks to be saved behind loss number `death`, and dies before the next."""

    def __init__(self, losses, trail, death, callback):
        self.losses, self.trail, self.death, self.callback = losses, trail, death, callback

    def step(self, compute):
        if len(self.losses) == self.death:
            raise Killed
        loss = compute()
        self.losses.append(loss.item())
        if len(self.losses) == self.death:
            self.ask()
        return loss

    def ask(self):
        self.callback._keeper.save_soon()


class Module(lightning.LightningModule):
    """Net, as Lightning wants it; notes what it is called for."""

    def __init__(self, life):
        super().__init__()
        self.net, self.life = Net(), life

    def training_step(self, batch):
        return self.life.step(lambda: self.net(**batch)["loss"])

    def validation_step(self, batch):
        self.log("loss", self.net(**batch)["loss"])

    def on_validation_end(self):
        self.life.trail.append((self.global_step, self.trainer.callback_metrics["loss"].item()))

    def on_train_epoch_end(self):
        self.life.trail.append(self.global_step)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]
