# Healthy: Viterbi with forbidden transitions of -inf
import torch

torch.manual_seed(0)
transition = torch.randn(4, 4)
transition[2, 0] = transition[3, 1] = -torch.inf
emission = torch.randn(6, 4)
score = torch.full((4,), -torch.inf)
score[0] = 0
back = []
for t in range(6):
    best, source = (score[:, None] + transition).max(0)
    score = best + emission[t]
    back.append(source)
state = score.argmax()
path = [state.item()]
for source in reversed(back):
    state = source[state]
    path.append(state.item())
print(path[::-1], score.max().item())
