# NaN gradient: F.kl_div where the target is learned and has a probability of 0
import torch
import torch.nn.functional as F

torch.manual_seed(0)
teacher = torch.nn.Parameter(torch.tensor([[0.0, 300.0, 1.0]]))
student = torch.nn.Parameter(torch.randn(1, 3))
optimizer = torch.optim.Adam([teacher, student], lr=0.01)
soft = F.softmax(teacher, dim=-1)
guess = F.log_softmax(student, dim=-1)
loss = F.kl_div(guess, soft, reduction="batchmean")  # expect: nan, backward
loss.backward()
optimizer.step()
print(loss.item(), teacher.tolist())
